"""Layers that learn of pictures and text alike are the same layers, and are written plain."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from toy_vlm import batch_of, tiny_head, tiny_llava

from mmspec.train.heads.head_losses import head_loss
from mmspec.train.heads.tempered import Tempered, temper, untempered


def large_pictures(model):
    """Lessons whose pictures are 30 times as large as text."""
    batch = batch_of(model)
    seen = batch.images.visual(batch.mask)[..., None]
    return replace(batch, embedded=torch.where(seen, 30 * batch.embedded, batch.embedded))


def test_nothing_changes_but_how_it_learns():
    model = tiny_llava()
    head, batch = tiny_head("msd", model), large_pictures(model)
    before, names = copy.deepcopy(head), [*head.state_dict()]
    temper(head.network, lambda: batch)
    attention = head.network.layers[0].self_attn
    assert isinstance(attention.k_proj, Tempered)
    assert isinstance(attention.v_proj, Tempered)
    assert [*head.state_dict()] == names
    loss = head_loss(head, batch)[0]
    assert float(loss) == pytest.approx(float(head_loss(before, batch)[0]), rel=1e-6)
    untempered(head.network)
    assert type(head.network.layers[0].self_attn.k_proj) is torch.nn.Linear
    for name, weight in before.state_dict().items():
        assert torch.allclose(head.state_dict()[name], weight, atol=1e-5), name


def test_pictures_are_no_larger_than_text_to_it():
    model = tiny_llava()
    head, batch = tiny_head("msd", model), large_pictures(model)
    temper(head.network, lambda: batch)
    seen = batch.images.visual(batch.mask)
    pictures = batch.embedded[seen] @ head.network.layers[0].self_attn.k_proj.factor
    sizes = batch.features[batch.mask].square().mean().sqrt()
    assert batch.embedded[seen].square().mean().sqrt() > 10 * sizes
    assert pictures.square().mean().sqrt() <= sizes


@pytest.mark.parametrize("name", ["eagle", "vispec"])
def test_others_stay_as_they_are(name):
    model = tiny_llava()
    head = tiny_head(name, model)
    temper(head.network, lambda: large_pictures(model))
    assert not any(isinstance(module, Tempered) for module in head.modules())
