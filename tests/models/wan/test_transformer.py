"""Block-causal Wan: against diffusers' bidirectional one, and a whole clip against its blocks."""

from __future__ import annotations

import re

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.transformers.transformer_wan import WanRotaryPosEmbed
from wans import SIZE, TINY, begin, latents, rand, tiny_wan

from mmspec.errors import InputError
from mmspec.models.wan.block import rotary_3d
from mmspec.models.wan.transformer import Memory, WanTransformer
from mmspec.models.wan.window import ContextWindow, attend_blocks

WINDOWS = [ContextWindow(), ContextWindow(1), ContextWindow(2, sink=1), ContextWindow(1, sink=2)]
NAMES = {
    r"text_embedding\.0": "condition_embedder.text_embedder.linear_1",
    r"text_embedding\.2": "condition_embedder.text_embedder.linear_2",
    r"time_embedding\.0": "condition_embedder.time_embedder.linear_1",
    r"time_embedding\.2": "condition_embedder.time_embedder.linear_2",
    r"time_projection\.1": "condition_embedder.time_proj",
    r"norm3": "norm2",
    r"self_attn": "attn1",
    r"cross_attn": "attn2",
    r"\.([qkv])\.": r".to_\1.",
    r"\.o\.": ".to_out.0.",
    r"ffn\.0": "ffn.net.0.proj",
    r"ffn\.2": "ffn.net.2",
    r"head\.head": "proj_out",
    r"head\.modulation": "scale_shift_table",
    r"modulation": "scale_shift_table",
}


def diffusers_wan(model: WanTransformer) -> WanTransformer3DModel:
    """The bidirectional transformer with the same weights."""
    ours = model.config
    theirs = WanTransformer3DModel(
        patch_size=tuple(ours.patch_size),
        num_attention_heads=ours.num_heads,
        attention_head_dim=ours.dim // ours.num_heads,
        in_channels=ours.in_dim,
        out_channels=ours.out_dim,
        text_dim=ours.text_dim,
        freq_dim=ours.freq_dim,
        ffn_dim=ours.ffn_dim,
        num_layers=ours.num_layers,
    )
    state = {}
    for name, value in model.state_dict().items():
        for pattern, named in NAMES.items():
            name = re.sub(pattern, named, name)
        state[name] = value
    theirs.load_state_dict(state)
    return theirs.eval()


@torch.no_grad()
@pytest.mark.parametrize("by_frame", [False, True])
def test_one_block_is_the_bidirectional_model(by_frame):
    """Of all frames, with one timestep for all or, as in Wan2.2, one a token."""
    model = tiny_wan(torch.float32, num_frame_per_block=5)
    noisy, text = latents(2, 5).float(), rand(2, 4, 10).float()
    times = torch.tensor([[950.0, 20.0, 300.0, 625.0, 0.0], [7.0, 1000.0, 512.5, 80.0, 999.0]])
    if not by_frame:
        times = times[:, 3:4].expand(2, 5)
    filled = torch.cat([text, torch.zeros(2, 2, 10)], dim=1)
    theirs = diffusers_wan(model)(
        noisy.transpose(1, 2),
        times.repeat_interleave(6, 1) if by_frame else times[:, 0],
        filled,
        return_dict=False,
    )[0]
    velocities = model(noisy, times, text)
    assert velocities.abs().mean() > 0.1
    assert torch.allclose(velocities, theirs.transpose(1, 2), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [24, 128, 10])
def test_frames_stand_where_the_clip_has_them(head_dim):
    """The factors of frames 5 and 6 are those that diffusers gives them within 7 frames."""
    rope = WanRotaryPosEmbed(head_dim, (1, 2, 2), 1024)
    cos, sin = rope(torch.zeros(1, 1, 7, 4, 6))
    theirs = torch.complex(cos.double(), sin.double())[0, -12:, 0, ::2]
    ours = rotary_3d((5, 6), 2, 3, head_dim, True, torch.device("cpu"))
    assert torch.allclose(ours, theirs, atol=1e-6)
    assert not torch.allclose(ours[:6], ours[6:])


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_attention_of_a_whole_clip(window, clean, whole):
    """Row by row, from what is said of blocks: 5 of 3 tokens, of all copies or the last."""
    copies, tokens, blocks = 1 + clean, 3, 5
    positions = [(copy, n // tokens) for copy in range(copies) for n in range(blocks * tokens)]
    draw = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(2, 2, len(positions), 4, generator=draw) for _ in range(3))
    wanted = []
    for i, (copy, block) in enumerate(positions):
        reads = []
        for other, told in positions:
            far = window.blocks is not None and told >= window.sink
            known = told < block and not (far and told < block - (window.blocks or 0))
            reads.append((told == block and other == copy) or (known and other == 0))
        weights = (k[:, :, reads] @ q[:, :, i, :, None] / 2).softmax(2)
        wanted.append((weights * v[:, :, reads]).sum(2))
    first = 0 if whole else (copies - 1) * blocks * tokens
    expected = torch.stack(wanted, dim=2)[:, :, first:]
    for learns in (False, True):
        asked = q[:, :, first:].requires_grad_(learns)
        found = attend_blocks(asked, k, v, tokens, window, copies)
        assert torch.allclose(found, expected, atol=1e-5)


def test_a_whole_clip_is_of_whole_blocks():
    with pytest.raises(InputError, match="3 frames are no blocks of 2"):
        tiny_wan()(latents(1, 3), torch.zeros(1, 3), rand(1, 4, 10))


def by_blocks(model, noisy, steps, clean, rows, **options):
    """Velocities block by block, each behind clean-context passes of all before it."""
    cache, found = begin(model, rows, **options), []
    pairs = zip(noisy.split(2, 1), steps, clean.split(2, 1), strict=True)
    for block, timestep, known in pairs:
        found.append(model.denoise(block, timestep, cache))
        model.commit(known, cache)
    return torch.cat(found, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
def test_whole_clip_is_its_blocks(window):
    """A clean clip in one call under the mask, and block by block with the cache."""
    model = tiny_wan(window=window.blocks, sink=window.sink, context_noise=30.0)
    clip = latents(2, 12)
    whole = model(clip, torch.full((2, 12), 30.0), rand(8, 4, 10, seed=99)[:2])
    parts = by_blocks(model, clip, [30.0] * 6, clip, 2, limit=6)
    assert whole.abs().mean() > 0.1
    assert torch.allclose(whole, parts, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("context_noise", [0.0, 100.0])
def test_teacher_forcing_is_block_by_block(window, context_noise):
    model = tiny_wan(window=window.blocks, sink=window.sink, context_noise=context_noise)
    clean, noisy, text = latents(2, 12), latents(2, 12, seed=1), rand(8, 4, 10, seed=99)[:2]
    steps = [1000.0, 20.0, 625.0, 0.0, 937.5, 333.0]
    times = torch.tensor(steps).repeat_interleave(2).expand(2, 12)
    whole = model(noisy, times, text, clean)
    parts = by_blocks(model, noisy, steps, clean, 2)
    assert torch.allclose(whole, parts, rtol=0, atol=1e-9)
    other = model(noisy, times, text, clean + 0.1 * latents(2, 12, seed=2))
    assert torch.allclose(whole[:, :2], other[:, :2], rtol=0, atol=1e-9)
    assert (whole - other).abs().flatten(2).amax(-1)[:, 2:].min() > 1e-4
    memory: Memory = {}
    model(latents(2, 12, seed=3), times, text, clean, memory)
    again = model(noisy, times, text, 0 * clean, memory)  # they are not looked at again
    assert torch.allclose(again, whole, rtol=0, atol=1e-9)


@pytest.mark.parametrize("precision", [torch.float64, torch.bfloat16])
def test_gradients_reach_every_weight(precision):
    model = tiny_wan(torch.float64 if precision == torch.float64 else torch.float32)
    clean, noisy, text = (x.to(model.dtype) for x in (latents(1, 4), latents(1, 4), rand(1, 3, 10)))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == torch.bfloat16):
        velocities = model(noisy, torch.full((1, 4), 500.0), text, clean)
    velocities.square().mean().backward()
    for name, weight in model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.isfinite().all(), name
        assert weight.grad.abs().max() > 1e-9, name


def test_blocks_can_be_trained_on_kept_context():
    """Gradients of a block flow through itself, none into the context."""
    model = tiny_wan()
    cache = begin(model)
    model.commit(latents(1, 4), cache)
    noisy = latents(1, 2, seed=1).requires_grad_()
    model.denoise(noisy, 750.0, cache).square().mean().backward()
    assert noisy.grad is not None
    assert noisy.grad.abs().min() > 0
    assert not cache.data.requires_grad


@torch.no_grad()
def test_masks_and_factors_of_inference_can_train():
    model = tiny_wan(num_heads=1)  # sizes of no other test: nothing is kept of it yet
    clip, times, text = latents(1, 6), torch.full((1, 6), 3.0), rand(1, 2, 10)
    with torch.inference_mode():
        model(clip, times, text, clip)
    with torch.enable_grad():
        model(clip, times, text, clip).sum().backward()
    assert model.patch_embedding.weight.grad.isfinite().all()


@torch.no_grad()
def test_half_precision_stays_close():
    exact, half = tiny_wan(torch.float32), tiny_wan(torch.bfloat16)
    args = latents(1, 4).float(), torch.full((1, 4), 833.3), rand(1, 4, 10).float()
    wanted, found = exact(*args), half(*args)
    assert found.dtype == torch.float32
    assert (found - wanted).norm() < 0.05 * wanted.norm()


@torch.no_grad()
def test_published_initialization():
    model = WanTransformer(**{**TINY, "dim": 480})
    for weight in model.parameters():
        torch.nn.init.constant_(weight, 7.0)
    for norm in (
        m for m in model.modules() if isinstance(m, torch.nn.RMSNorm | torch.nn.LayerNorm)
    ):
        norm.reset_parameters()
    model.init_weights()
    velocities = model(latents(1, 4).float(), torch.full((1, 4), 9.0), rand(1, 4, 10).float())
    assert not velocities.any()
    for name, weight in model.named_parameters():
        if "norm" not in name:
            assert weight.abs().max() < 2, name
    for name, std in {
        "blocks.1.modulation": 480**-0.5,
        "head.modulation": 480**-0.5,
        "text_embedding.0.weight": 0.02,
        "time_embedding.2.weight": 0.02,
        "blocks.0.ffn.0.weight": (2 / (480 + 40)) ** 0.5,
        "patch_embedding.weight": (2 / (480 + 16)) ** 0.5,
    }.items():
        assert model.get_parameter(name).std() == pytest.approx(std, rel=0.1), name


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(patch_size=(2, 2, 2)), "a token is of one frame, not of 2"),
        (dict(num_heads=5), "dim 48 can't be cut into 5 heads"),
        (dict(window=0), "a window has at least 1 block, not 0"),
        (dict(sink=-1), "sink must be 0 or more"),
    ],
)
def test_sizes_that_do_not_fit(changes, message):
    with pytest.raises(ValueError, match=message):
        WanTransformer(**{**TINY, **changes})


@torch.no_grad()
def test_inputs_that_do_not_fit():
    model = tiny_wan()
    with pytest.raises(InputError, match="a text of 7 tokens; at most 6"):
        model.start(rand(1, 7, 10), *SIZE)
    with pytest.raises(InputError, match="latents of 4×5 can't be cut into 2×2"):
        model.start(rand(1, 4, 10), 4, 5, 3)
    with pytest.raises(InputError, match="a global window needs a limit of blocks"):
        model.start(rand(1, 4, 10), *SIZE)
    with pytest.raises(InputError, match="3 noisy and 0 clean frames are no blocks of 2"):
        model.denoise(latents(1, 3), 9.0, begin(model))
    with pytest.raises(InputError, match="2 noisy and 1 clean frames are no blocks of 2"):
        model.denoise(latents(1, 2), 9.0, begin(model), latents(1, 1))
