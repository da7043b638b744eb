"""Streaming through `AutoencoderKLWan`: blocks are the whole clip, and a block is taken back."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from wans import rand, tiny_vae

from mmspec.errors import InputError
from mmspec.models.wan.vae import decode_block, encode_block, temporal_factor

VAES = [
    dict(downsample=(False,)),
    dict(downsample=(False, True)),
    dict(),
    dict(is_residual=True, in_channels=12, out_channels=12, patch_size=2, dim_mult=[1, 2, 2]),
]


def raw(vae, latents: torch.Tensor) -> torch.Tensor:
    """The autoencoder's own latents `[B, C, F, h, w]`."""
    moments = vae.config.latents_mean, vae.config.latents_std
    mean, std = (torch.tensor(x, dtype=torch.float64).view(-1, 1, 1, 1) for x in moments)
    return latents.transpose(1, 2) * std + mean


def streamed(vae, latents: torch.Tensor, sizes: list[int]) -> torch.Tensor:
    state, frames = None, []
    for block in latents.split(sizes, dim=1):
        shown, state = decode_block(vae, block, state)
        frames.append(shown)
    return torch.cat(frames, dim=1)


@torch.no_grad()
@pytest.mark.parametrize("changes", VAES)
@pytest.mark.parametrize("sizes", [[6], [2, 2, 2], [1, 1, 3, 1]])
def test_decoding_in_blocks_is_decoding_the_clip(changes, sizes):
    vae, latents = tiny_vae(**changes), rand(2, 6, 3, 2, 3)
    whole = vae.decode(raw(vae, latents)).sample.transpose(1, 2)
    factor = temporal_factor(vae)
    assert whole.shape[:3] == (2, 1 + 5 * factor, 3)
    assert whole.abs().max() > 0.1
    assert torch.allclose(streamed(vae, latents, sizes), whole, rtol=0, atol=1e-9)


@torch.no_grad()
@pytest.mark.parametrize("changes", VAES)
@pytest.mark.parametrize("blocks", [[5], [2, 2, 1], [1, 4]])
def test_encoding_in_blocks_is_encoding_the_clip(changes, blocks):
    vae = tiny_vae(**changes)
    factor = temporal_factor(vae)
    frames = rand(2, 1 + 4 * factor, 3, 16, 8).tanh()
    whole = vae.encode(frames.transpose(1, 2)).latent_dist.mode()
    sizes = [factor * size for size in blocks]
    sizes[0] -= factor - 1
    state, latents = {}, []
    for block in frames.split(sizes, dim=1):
        found, state = encode_block(vae, block, state)
        latents.append(found)
    latents = torch.cat(latents, dim=1)
    assert latents.shape[1] == 5
    assert torch.allclose(raw(vae, latents), whole, rtol=0, atol=1e-9)
    shown, _ = decode_block(vae, latents)
    assert shown.shape == frames.shape


@torch.no_grad()
@pytest.mark.parametrize("size", [1, 2])
def test_rejected_block_is_taken_back(size):
    """Frames behind it are those of a clip that never had it."""
    vae, clip, rejected = tiny_vae(), rand(1, 3 * size, 3, 2, 2), rand(1, size, 3, 2, 2, seed=1)
    first, second, third = clip.split(size, dim=1)
    _, state = decode_block(vae, first)
    before = {name: tensor.clone() for name, tensor in state.items()}
    wrong, _ = decode_block(vae, rejected, state)
    assert state.keys() == before.keys()
    assert all(torch.equal(state[name], before[name]) for name in state)
    wanted = streamed(vae, clip, [size] * 3)
    shown, behind = decode_block(vae, second, state)
    assert (shown - wrong).abs().max() > 1e-3
    last, _ = decode_block(vae, third, behind)
    start = wanted.shape[1] - 8 * size
    assert torch.equal(torch.cat([shown, last], dim=1), wanted[:, start:])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last_3d])
@pytest.mark.parametrize("size", [1, 2])
def test_state_lies_in_a_file(size, layout, dtype, tmp_path):
    """And goes on from there to the last bit, in whatever layout convolutions leave their output:
    on some processors it is channels last.
    """
    vae = torch.nn.Module.to(tiny_vae(), dtype)
    for layer in vae.modules():
        if isinstance(layer, torch.nn.Conv3d):
            layer.register_forward_hook(lambda _, args, out: out.contiguous(memory_format=layout))
    first, second = rand(1, 2 * size, 3, 2, 3, dtype=dtype).split(size, dim=1)
    _, state = decode_block(vae, first)
    save_file(state, tmp_path / "state")  # which takes contiguous tensors alone
    wanted, after = decode_block(vae, second, state)
    found, behind = decode_block(vae, second, load_file(tmp_path / "state"))
    assert torch.equal(found, wanted)
    assert all(torch.equal(behind[name], after[name]) for name in after)


@torch.no_grad()
def test_two_clips_at_a_time():
    """Nothing of one is left in the model for the other."""
    vae, clips = tiny_vae(), [rand(1, 4, 3, 2, 2, seed=n).split(2, dim=1) for n in range(2)]
    wanted = [streamed(vae, torch.cat(clip, dim=1), [2, 2])[:, 5:] for clip in clips]
    states = [decode_block(vae, clip[0])[1] for clip in clips]
    vae.encode(rand(1, 3, 5, 8, 8))
    found = [
        decode_block(vae, clip[1], state)[0] for clip, state in zip(clips, states, strict=True)
    ]
    assert all(map(torch.equal, found, wanted))


def test_frames_that_are_no_latent_frames():
    vae = tiny_vae()
    with pytest.raises(InputError, match="4n \\+ 1 frames begin a clip, not 4"):
        encode_block(vae, rand(1, 4, 3, 8, 8))
    _, state = encode_block(vae, rand(1, 1, 3, 8, 8))
    for count in (5, 0):
        with pytest.raises(InputError, match=f"4n frames go on, not {count}"):
            encode_block(vae, rand(1, count, 3, 8, 8), state)
