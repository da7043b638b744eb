"""Qwen's towers: attention as their eager path weighs it, tokens in the order of their output."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from mmspec.compress.base import compress
from mmspec.compress.packed_tower import watch_packed
from mmspec.errors import InputError

SHAPE = dict(
    depth=3, num_heads=2, patch_size=2, temporal_patch_size=1, spatial_merge_size=2, in_channels=3
)
FAMILIES = {
    "qwen2_vl": (
        "Qwen2VisionTransformerPretrainedModel",
        "Qwen2VLVisionConfig",
        dict(embed_dim=16, hidden_size=24, mlp_ratio=2),
    ),
    "qwen2_5_vl": (
        "Qwen2_5_VisionTransformerPretrainedModel",
        "Qwen2_5_VLVisionConfig",
        dict(
            hidden_size=16,
            out_hidden_size=24,
            intermediate_size=20,
            window_size=8,
            fullatt_block_indexes=[1],
        ),
    ),
    "qwen3_vl": (
        "Qwen3VLVisionModel",
        "Qwen3VLVisionConfig",
        dict(
            hidden_size=16,
            out_hidden_size=24,
            intermediate_size=20,
            num_position_embeddings=16,
            deepstack_visual_indexes=[0],
        ),
    ),
}
GRID = torch.tensor([[1, 6, 4], [2, 4, 8]])  # patches: an image, and a clip of two frames
TOKENS = [6, 16]


def tower(family, attention="sdpa"):
    name, config, sizes = FAMILIES[family]
    module = import_module(f"transformers.models.{family}.modeling_{family}")
    made = getattr(module, config)(**SHAPE, **sizes)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = getattr(module, name)._from_config(made, attn_implementation=attention).eval()
        for p in model.parameters():
            torch.nn.init.normal_(p, std=0.3)
    return model, module


def patches():
    return torch.randn(int(GRID.prod(1).sum()), 12, generator=torch.Generator().manual_seed(3))


def eager_attention(family, block, monkeypatch):
    """Per patch in the block's own order: mean over heads and over the stretch of eager weights."""
    model, module = tower(family, "eager")
    eager, seen = module.eager_attention_forward, []

    def recording(module, *args, **kwargs):
        out, weights = eager(module, *args, **kwargs)
        if module is model.blocks[block].attn:
            seen.append(weights[0].mean((0, 1)))
        return out, weights

    with monkeypatch.context() as patch:
        patch.setattr(module, "eager_attention_forward", recording)
        model(patches(), grid_thw=GRID)
    return torch.cat(seen)


@pytest.mark.parametrize("layer", [None, 0])
@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_equals_eager_attention(family, layer, monkeypatch):
    windowed = family == "qwen2_5_vl"
    block = (1 if windowed else 2) if layer is None else layer
    want = eager_attention(family, block, monkeypatch).unflatten(0, (-1, 4)).sum(1)
    model, _ = tower(family)
    merged = []  # what becomes a token, in the block's order
    hook = model.merger.register_forward_hook(lambda module, args, out: merged.append(out))
    with watch_packed(model, layer) as seen:
        out = model(patches(), grid_thw=GRID).pooler_output
    hook.remove()
    # where each token of the output stood inside the tower
    places = [int((merged[0] == token).all(-1).nonzero()) for token in out]
    assert (places != list(range(22))) == windowed
    assert [image.attention.shape for image in seen] == [(1, n) for n in TOKENS]
    found = torch.cat([image.attention[0] for image in seen])
    assert found.std() > 1e-3
    torch.testing.assert_close(found, want[places], rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_keys_are_means_over_the_patches(family):
    model, _ = tower(family)
    block = 1 if family == "qwen2_5_vl" else 2
    found, merged = [], []
    hooks = [
        model.blocks[block].attn.qkv.register_forward_hook(lambda m, args, out: found.append(out)),
        model.merger.register_forward_hook(lambda m, args, out: merged.append(out)),
    ]
    out = model(patches(), grid_thw=GRID).pooler_output
    for hook in hooks:
        hook.remove()
    with watch_packed(model) as seen:
        model(patches(), GRID)
    places = [int((merged[0] == token).all(-1).nonzero()) for token in out]
    keys = found[0][:, 16:32]
    want = torch.stack([sum(keys[4 * p + i] for i in range(4)) / 4 for p in places])
    made = torch.cat([image.keys[0] for image in seen])
    torch.testing.assert_close(made, want, rtol=0, atol=1e-6)
    image = seen[1]
    small = compress("visionzip", torch.randn(1, 16, 5), 6, **image.inputs("visionzip"))
    assert small.features.shape == (1, 6, 5)


def test_what_can_not_be_watched():
    model, _ = tower("qwen2_vl")
    with pytest.raises(InputError, match="3 blocks and no block 3"), watch_packed(model, 3):
        pass
    with pytest.raises(InputError, match="can't watch Linear"), watch_packed(torch.nn.Linear(1, 1)):
        pass
