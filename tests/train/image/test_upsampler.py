"""The up-sampler's recipe: same scenes at two sizes, damage, figures, and a folder that draws."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from mmspec.models.llamagen.vq import VQModel
from mmspec.train import recipes
from mmspec.train.batches import scene_batch
from mmspec.train.card import ship
from mmspec.train.image import upsampler as image_upsampler
from mmspec.train.image.upsampler import DAMAGE, NEAR, ImageUpsamplerRecipe
from mmspec.train.trainer import TrainConfig


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A pipeline folder with nothing but a tokenizer of random weights."""
    path = tmp_path_factory.mktemp("pipeline")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        size = dict(codebook_size=64, codebook_show_usage=False, ch=32, ch_mult=(1, 1))
        ship(path, "vq_model", VQModel(**size, num_res_blocks=1, z_channels=32, patch_size=4))
    return path


@pytest.fixture
def recipe(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(image_upsampler, "UPSAMPLER", dict(width=32, depth=1))
    monkeypatch.setattr(image_upsampler, "HELD_OUT", 4)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ImageUpsamplerRecipe(TrainConfig(tmp_path, 10, 3), folder, pool=2)


def test_a_lesson_is_one_scene_at_two_sizes(recipe):
    small, large = recipe.example([0, 7], 3, "train")
    for side, tokens in ((64, small), (128, large)):
        pixels = scene_batch(np.random.default_rng([0, 7]), 3, side)[1]
        assert torch.equal(tokens, recipe.vq.encode(pixels))
    assert (small.shape, large.shape) == ((3, 64), (3, 256))
    one, other = (scene_batch(np.random.default_rng([0, 7]), 3, s)[0] for s in (64, 128))
    assert one == other


def test_damage(recipe):
    """Of every picture a share of its own, at most `DAMAGE`; always a near code."""
    codes = torch.randint(64, (200, 64), generator=torch.Generator().manual_seed(0))
    damaged = recipe.damaged(codes, np.random.default_rng(0))
    hit = damaged != codes
    near = recipe.near[codes][..., :NEAR]
    assert (near == damaged[..., None]).any(-1)[hit].all()
    shares = hit.float().mean(1)
    assert float(hit.float().mean()) == pytest.approx(DAMAGE / 2, abs=0.02)
    assert shares.max() < DAMAGE + 0.2
    assert shares.std() > 0.05  # even shares would vary by 0.04


def test_gradient_reaches_every_weight(recipe):
    rng = np.random.default_rng(0)
    loss, metrics = recipe.loss(recipe.draw(rng, 3), rng, 3)
    loss.backward()
    assert float(loss.detach()) > 0
    assert 0 <= metrics["top1"] <= 1
    (optimizer,) = recipe.optimizers()
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    for name, weight in recipe.model.named_parameters():
        assert id(weight) in moved
        assert weight.grad is not None, name
        assert weight.grad.any(), name


def test_a_few_steps_on_one_batch_learn_it(recipe):
    (optimizer,) = recipe.optimizers()
    losses = []
    for _ in range(12):
        loss, _ = recipe.loss(0, np.random.default_rng(0), 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_figures(recipe, monkeypatch):
    """A network that says what is true hits always; pooled hits are at least the others."""
    figures = recipe.evaluate(recipe.model)
    for name in ("", "_damaged"):
        assert figures[f"held_out_top1{name}"] <= figures[f"held_out_top20_pooled{name}"] <= 1
    large = recipe.example([0, 10**6], 4, "held_out")[1]

    class Oracle:
        def __init__(self, *_):
            pass

        def __call__(self, codes, grid):
            return large

    monkeypatch.setattr(image_upsampler, "LatentUpsampling", Oracle)
    assert set(recipe.evaluate(recipe.model).values()) == {1.0}


def test_the_stage_ships_its_component(folder, monkeypatch):
    monkeypatch.setattr(image_upsampler, "UPSAMPLER", dict(width=32, depth=1))
    monkeypatch.setattr(image_upsampler, "HELD_OUT", 4)
    with torch.random.fork_rng():
        (record,) = recipes.train("image-upsampler", folder, steps=2, batch_size=2)
    assert record["step"] == 2
    part = folder / "upsampler"
    assert "Not good for" in (part / "README.md").read_text()
    (weights,) = part.glob("*.safetensors")
    assert {value.dtype for value in load_file(weights).values()} == {torch.float16}
    index = json.loads((folder / "model_index.json").read_text())
    assert index["upsampler"] == ["mmspec.models.llamagen.upsampler", "LatentUpsampler"]
