"""EAGLE's head as it is trained, level by level, against one level at a time; its checkpoint."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmspec.errors import InputError
from mmspec.models.llamagen.eagle_head import EagleHead
from mmspec.models.llamagen.transformer import causal_mask
from mmspec.models.loading import cast, load_model


def head_and_inputs(kv_heads: int | None, rows: int = 3, length: int = 11):
    """A random head in float64 and inputs of rows whose first columns are padding."""
    generator = torch.Generator().manual_seed(4)
    head = EagleHead(16, 4, kv_heads, 24)
    for weight in head.parameters():
        torch.nn.init.normal_(weight, float(weight.ndim == 1), 0.4, generator=generator)
    embedded = torch.randn(rows, length, 16, generator=generator, dtype=torch.float64)
    features = torch.randn(rows, length, 16, generator=generator, dtype=torch.float64)
    angles = torch.randn(length, 2, generator=generator)
    real = torch.arange(4) >= torch.tensor([0, 1, 3])[:, None]
    rotary = torch.polar(torch.ones_like(angles), angles)
    return cast(head, torch.float64), embedded, features, rotary, causal_mask(real, length)


@pytest.mark.parametrize("kv_heads", [None, 2])
@torch.inference_mode()
def test_levels_equal_one_draft_after_the_other(kv_heads):
    """Slow twin: every input's own draft, a whole pass a level; the head has one layer, so that
    what is behind an input has no say in its keys."""
    head, embedded, features, rotary, mask = head_and_inputs(kv_heads)
    depth, length = 4, embedded.shape[1]
    levels = head(embedded, features, rotary, mask, depth)
    assert len(levels) == depth
    for end in range(depth + 2, length):  # no draft begins in padding
        for level in range(1, depth + 1):
            own = features.clone()
            for step in range(level):
                at = end - level + 1 + step  # the inputs from the draft's root on
                (out,) = head(embedded, own, rotary, mask)
                if step + 1 < level:
                    own[:, at + 1] = out[:, at]
            assert torch.allclose(levels[level - 1][:, end], out[:, end], atol=1e-12)


@torch.inference_mode()
def test_nothing_later_is_read():
    head, embedded, features, rotary, mask = head_and_inputs(None)
    before = head(embedded, features, rotary, mask, 3)
    embedded[:, 6:] += 1
    features[:, 6:] += 1
    after = head(embedded, features, rotary, mask, 3)
    for ours, theirs in zip(before, after, strict=True):
        assert torch.equal(ours[:, 2:6], theirs[:, 2:6])  # no draft of three levels ends before
        assert not torch.allclose(ours[:, 6:], theirs[:, 6:])


@torch.inference_mode()
def test_first_weights_pass_the_hidden_state_on():
    head = EagleHead(16, 4, None, 24)
    head.init_weights(std=1e-4)
    _, embedded, features, rotary, mask = head_and_inputs(None)
    (out,) = head(embedded.float(), features.float(), rotary, mask)
    states = F.rms_norm(features.float(), (16,))
    assert torch.allclose(out, states, atol=0.02)


def test_checkpoint_holds_the_layer_alone(tmp_path):
    """Neither embeddings nor an output layer: those are the target's."""
    head = EagleHead(16, 4, 2, 24)
    shapes = {name: tuple(value.shape) for name, value in head.state_dict().items()}
    assert shapes == {
        "fc.weight": (16, 32),
        "layer.attention.wqkv.weight": (32, 16),
        "layer.attention.wo.weight": (16, 16),
        "layer.attention_norm.weight": (16,),
        "layer.feed_forward.w1.weight": (24, 16),
        "layer.feed_forward.w2.weight": (16, 24),
        "layer.feed_forward.w3.weight": (24, 16),
        "layer.ffn_norm.weight": (16,),
    }
    head.save_pretrained(tmp_path)
    again = load_model(EagleHead, tmp_path)
    for name, value in head.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    config = tmp_path / "config.json"
    config.write_text(config.read_text().replace('"hidden_dim": 24', '"hidden_dim": 32'))
    with pytest.raises(InputError, match="feed_forward"):
        load_model(EagleHead, tmp_path)
