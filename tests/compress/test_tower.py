"""What is recomputed of a tower's layer is what its eager attention would have shown."""

from __future__ import annotations

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    CLIPVisionModel,
    Idefics3VisionConfig,
    InternVLVisionConfig,
    InternVLVisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)
from transformers.models.idefics3.modeling_idefics3 import (
    Idefics3Connector,
    Idefics3VisionTransformer,
)
from transformers.models.internvl.modeling_internvl import InternVLModel

from mmspec.compress.base import compress
from mmspec.compress.tower import watch
from mmspec.errors import InputError

SIZES = dict(
    hidden_size=16,
    intermediate_size=24,
    num_hidden_layers=3,
    num_attention_heads=4,
    image_size=16,
    patch_size=4,
)
TOWERS = {
    "clip": (CLIPVisionModel, CLIPVisionConfig(**SIZES), True),
    "siglip": (SiglipVisionModel, SiglipVisionConfig(**SIZES), False),
    "idefics3": (Idefics3VisionTransformer, Idefics3VisionConfig(**SIZES), False),
    "internvl": (
        InternVLVisionModel,
        InternVLVisionConfig(**{**SIZES, "image_size": [16, 16], "patch_size": [4, 4]}),
        True,
    ),
    "internvl-norm": (
        InternVLVisionModel,
        InternVLVisionConfig(
            **{**SIZES, "image_size": [16, 16], "patch_size": [4, 4], "use_qk_norm": True}
        ),
        True,
    ),
}


def tower(name, attention="sdpa"):
    """Equal weights for equal names; large ones, so that attention is not flat."""
    kind, config, first = TOWERS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind._from_config(config, attn_implementation=attention).eval()
        for p in model.parameters():
            if p.ndim > 1:
                torch.nn.init.normal_(p, std=0.4)
    return model, first


@pytest.mark.parametrize("layer", [-1, -2, 0])
@pytest.mark.parametrize("name", TOWERS)
@torch.inference_mode()
def test_equals_eager_attention(name, layer):
    pixels = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    eager, first = tower(name, "eager")
    weights = eager(pixels, output_attentions=True).attentions[layer]
    model, _ = tower(name)
    with watch(model, layer) as seen:
        model(pixels)
    want = weights[:, :, 0, 1:].mean(1) if first else weights.mean((1, 2))
    assert want.std() > 1e-2  # far from flat
    torch.testing.assert_close(seen.attention, want, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", ["clip", "siglip", "internvl-norm"])
@torch.inference_mode()
def test_keys_are_those_of_the_layer(name):
    model, first = tower(name)
    block = (model.encoder.layers if hasattr(model.encoder, "layers") else model.encoder.layer)[-2]
    module = getattr(block, "self_attn", None) or block.attention
    found = []
    hook = getattr(module, "k_norm", module.k_proj).register_forward_hook(
        lambda module, args, out: found.append(out)
    )
    pixels = torch.randn(2, 3, 16, 16)
    model(pixels)
    hook.remove()
    with watch(model) as seen:
        model(pixels)
    want = found[0][:, int(first) :]
    torch.testing.assert_close(seen.keys, want, rtol=0, atol=1e-6)
    heads = want.reshape(2, 16, 4, 4)
    mean = seen.inputs("visionzip")["keys"]
    torch.testing.assert_close(mean, sum(heads[:, :, h] for h in range(4)) / 4)
    assert torch.equal(seen.inputs("prumerge")["keys"], seen.keys)
    assert list(seen.inputs("tome")) == ["keys"]
    assert seen.inputs("divprune") == {}
    compress("visionzip", torch.randn(2, 16, 5), 6, **seen.inputs("visionzip"))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@torch.inference_mode()
def test_padding_does_not_count(attention):
    """Idefics3 pads images: real patches get from real ones what they get in an image alone."""
    model, _ = tower("idefics3", attention)
    pixels = torch.randn(2, 3, 16, 16)
    mask = torch.ones(2, 4, 4, dtype=torch.bool)
    mask[1, :, 2:] = False
    eager, _ = tower("idefics3", "eager")
    weights = eager(pixels, mask, output_attentions=True).attentions[-2].mean(1)
    with watch(model) as seen:
        model(pixels, mask)
    real = mask.flatten(1)
    for row in range(2):
        want = weights[row][real[row]].mean(0)
        torch.testing.assert_close(seen.attention[row], want, rtol=0, atol=1e-6)
    assert not seen.attention[1][~real[1]].any()


def test_blocks_follow_pixel_shuffle():
    """Blocks of patches stand where the models' own pixel shuffles put them."""
    model, _ = tower("siglip")
    with watch(model) as seen, torch.inference_mode():
        model(torch.randn(2, 3, 16, 16))
    values = torch.cat([seen.attention[..., None], seen.keys], dim=-1)
    channels = values.shape[-1]
    shuffled = InternVLModel.pixel_shuffle(None, values.reshape(2, 4, 4, channels), 0.5)
    for made in (shuffled.flatten(1, 2), Idefics3Connector.pixel_shuffle(None, values, 2)):
        want = made.unflatten(-1, (4, channels))
        found = seen.blocks(2)
        torch.testing.assert_close(found.attention, want[..., 0].sum(-1), rtol=0, atol=1e-6)
        torch.testing.assert_close(found.keys, want[..., 1:].mean(-2), rtol=0, atol=1e-6)
    with pytest.raises(InputError, match="16 patches are no square of blocks of 3 × 3"):
        seen.blocks(3)


def test_what_can_not_be_watched():
    model, _ = tower("clip")
    with pytest.raises(InputError, match="3 layers and no layer 3"), watch(model, 3):
        pass
    with pytest.raises(InputError, match="can't watch Linear"), watch(torch.nn.Linear(1, 1)):
        pass
    with watch(model) as seen, pytest.raises(InputError, match="has shown nothing yet"):
        seen.inputs("visionzip")
    assert not model.encoder.layers[-2].self_attn._forward_pre_hooks
