"""Layers that learn of pictures and text alike are the same layers, and are written plain."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from toy_vlm import batch_of, tiny_head, tiny_llava

from mmspec.train.heads.head_losses import head_loss
from mmspec.train.heads.tempered import Tempered, evened, temper, untempered


def large_pictures(model):
    """Lessons whose pictures are 30 times as large as text."""
    batch = batch_of(model)
    seen = batch.images.visual(batch.mask)[..., None]
    return replace(batch, embedded=torch.where(seen, 30 * batch.embedded, batch.embedded))


# layers that read embeddings as they come
READERS = {
    "eagle": ["fc"],
    "specvlm": ["fc"],
    "flash": ["fc"],
    "msd": ["fc", "layers.0.self_attn.k_proj", "layers.0.self_attn.v_proj"],
    "vispec": ["fc", "imadpt.k_proj", "imadpt.v_proj"],
}


@pytest.mark.parametrize("name", READERS)
def test_nothing_changes_but_how_it_learns(name):
    model = tiny_llava()
    head, batch = tiny_head(name, model).eval(), large_pictures(model)
    with torch.no_grad():
        head.network.fc.weight.normal_(std=0.1)
    before = copy.deepcopy(head)
    temper(head.network, lambda: batch)
    found = {n for n, module in head.network.named_modules() if isinstance(module, Tempered)}
    assert found == {*READERS[name]}
    loss = head_loss(head, batch)[0]
    assert loss.item() == pytest.approx(head_loss(before, batch)[0].item(), rel=1e-5)
    untempered(head.network)
    assert [*head.state_dict()] == [*before.state_dict()]
    for weight, value in before.state_dict().items():
        assert torch.allclose(head.state_dict()[weight], value, atol=1e-4), weight


@pytest.mark.parametrize("name", READERS)
def test_what_is_read_is_no_larger_than_hidden_states(name):
    model = tiny_llava()
    head, batch = tiny_head(name, model), large_pictures(model)
    temper(head.network, lambda: batch)
    seen = batch.images.visual(batch.mask)
    size = batch.features[batch.mask].square().mean().sqrt()
    pictures, text = batch.embedded[seen], batch.embedded[batch.mask & ~seen]
    assert pictures.square().mean().sqrt() > 10 * size
    for reader in READERS[name]:
        reads = [pictures]
        if reader == "fc":
            reads = [pictures, text] if head.network.joins_pictures else [text]
        factor = head.network.get_submodule(reader).factor
        mean = torch.cat([x @ factor for x in reads]).square().mean().sqrt()
        assert size / 4 < mean < 1.1 * size, reader


def test_small_differences_of_large_inputs_are_seen_in_half_precision():
    """bfloat16 has three digits: pictures of one direction drown all others in it."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        x = torch.randn(64, 8)
        x[:, 0] += 300
        x = x @ torch.linalg.qr(torch.randn(8, 8)).Q  # in no direction that has a column
        layer = Tempered(torch.nn.Linear(8, 6), evened(x, torch.ones(()), 0.0))
        torch.nn.init.normal_(layer.weight)  # as it has learned
    right = layer(x)
    with torch.autocast("cpu", torch.bfloat16):
        errors = [made(x).float() - right for made in (layer, layer.plain())]
    ours, plain = ((error.norm() / right.norm()).item() for error in errors)
    assert ours < 0.02 < 0.1 < plain


def test_other_networks_stay_as_they_are():
    model = tiny_llava()
    head = tiny_head("dflash", model)
    temper(head.network, lambda: large_pictures(model))
    assert not any(isinstance(module, Tempered) for module in head.modules())


def test_text_alone():
    """A language model's head reads no pictures."""
    model = tiny_llava()
    head, batch = tiny_head("eagle", model), replace(batch_of(model), images=None)
    temper(head.network, lambda: batch)
    words = batch.embedded[batch.mask] @ head.network.fc.factor
    size = batch.features[batch.mask].square().mean().sqrt()
    assert size / 4 < words.square().mean().sqrt() < 1.1 * size
