"""The recipe of the spatial heads: what they are taught, and that drafting reads the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from mmspec import ImagePipeline
from mmspec.errors import InputError
from mmspec.models.llamagen.spatial_heads import (
    SpatialDecoder,
    SpatialHeads,
    guided_states,
    places_above,
)
from mmspec.models.loading import load_model
from mmspec.train import recipes
from mmspec.train.batches import scene_batch
from mmspec.train.image import distillation_data
from mmspec.train.image import spatial_heads as image_spatial
from mmspec.train.image.distillation_data import recent_batch
from mmspec.train.image.spatial_heads import ImageSpatialRecipe
from mmspec.train.trainer import TrainConfig, Trainer

SMALL = dict(cell_dim=12, hidden_dim=20, reach=2, left=2)


@pytest.fixture
def folder(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(image_spatial, "HEADS", SMALL)
    monkeypatch.setattr(distillation_data, "HELD_OUT", 6)
    return shutil.copytree(tiny_folder, tmp_path / "image")


@pytest.fixture
def recipe(folder, tmp_path) -> ImageSpatialRecipe:
    config = TrainConfig(tmp_path / "run", 30, 4, warmup=3, ema=0.9, evaluate_every=10)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ImageSpatialRecipe(config, folder)


def scenes(recipe, size: int = 3):
    return scene_batch(np.random.default_rng(0), size, recipe.resolution)


def test_a_lesson_is_what_the_pipeline_says(recipe, folder):
    captions, pixels = scenes(recipe)
    example = recipe.example(captions, pixels)
    pipe = ImagePipeline.from_pretrained(folder)
    with torch.inference_mode():
        tokens = pipe.vq_model.encode(pixels)
        laws = pipe.token_laws(captions, tokens)
    assert torch.equal(example.tokens, tokens)
    kept = laws.gather(-1, example.ids.long())
    assert torch.allclose(example.probs.float(), kept, atol=2e-3)
    assert torch.allclose(kept.sum(-1), torch.ones(()), atol=1e-5)
    # the hidden states are those that the laws are made from
    states = guided_states(example.hidden.float(), recipe.scale)[..., recipe.teacher.config.dim :]
    again = recipe.warp(recipe.decoder.logits(states))
    assert torch.allclose(again, laws, atol=5e-3)


def test_stale_states_are_of_other_tokens(recipe):
    example = recipe.example(*scenes(recipe))
    assert torch.equal(example.stale[:, 0], example.hidden[:, 0])  # nothing stands in front
    differ = (example.stale != example.hidden).any(-1)
    assert differ[:, 8:].float().mean() > 0.9
    plain = recipe.example(*scenes(recipe), with_stale=False)
    assert plain.stale is plain.hidden
    assert torch.equal(plain.hidden, example.hidden)


@pytest.mark.parametrize("shown", ["fresh", "unseen"])
def test_drafting_reads_what_training_reads(recipe, shown):
    """The training pass over whole grids against `SpatialDecoder`, to float32 rounding."""
    example = recipe.example(*scenes(recipe))
    heads = recipe.model.eval()
    with torch.no_grad():
        for weight in heads.parameters():
            weight.normal_(std=0.2, generator=torch.Generator().manual_seed(weight.numel()))
        expected = recipe.logits(heads, example, None, shown)
        fast = SpatialDecoder(heads, recipe.decoder)
        rows, cells = example.tokens.shape
        states = guided_states(example.hidden.float(), recipe.scale)
        seen = torch.full((rows, cells), shown == "fresh")
        positions = torch.arange(cells).expand(rows, -1)
        index, exist = places_above(positions, recipe.row, fast.reach)
        summary = fast.summary(guided_states(example.summary.float(), recipe.scale)[:, 0])
        below, skip = fast.look_below(states, seen, example.tokens, index, exist, summary)
        vocab = len(fast.embeddings)
        for place in range(cells):
            column = place % recipe.row
            left = [
                example.tokens[:, place - 1 - k] if column > k else torch.full((rows,), vocab)
                for k in range(fast.left)
            ]
            logits = fast.logits(below[:, place], skip[:, place], left)
            assert torch.allclose(logits, expected[:, place], atol=1e-4)


def test_what_a_cell_may_read(recipe):
    """Tokens that come later in raster order, or lie out of reach, change nothing."""
    example = recipe.example(*scenes(recipe, 1))
    heads, row, place = recipe.model.eval(), recipe.row, 9  # third row, second column of 4
    read = {place - 1, *range(place - row - 1, place - row + 3)}

    def logits(changed: int):
        tokens = example.tokens.clone()
        tokens[:, changed] = (tokens[:, changed] + 1) % 128
        return recipe.logits(heads, replace(example, tokens=tokens))[0, place]

    with torch.no_grad():
        before = recipe.logits(heads, example)[0, place]
        changing = {n for n in range(row * row) if not torch.equal(logits(n), before)}
    assert changing == read


def test_gradient_reaches_every_weight(recipe):
    example = recipe.example(*scenes(recipe))
    model = recipe.model.train()
    for logits in (
        recipe.logits(model, example, np.random.default_rng(3)),
        recipe.logits(model, example, None, "unseen"),
    ):
        F.cross_entropy(logits.flatten(0, 1), example.tokens.flatten()).backward()
    for name, weight in recipe.model.named_parameters():
        assert weight.grad is not None, name
        assert weight.grad.abs().sum() > 0, name
    assert all(weight.grad is None for weight in recipe.teacher.parameters())


def test_lessons_are_new_now_and_then_and_recent():
    pool, uses = image_spatial.POOL, image_spatial.USES
    rngs = (np.random.default_rng([1, step]) for step in range(2000))
    drawn = [recent_batch(pool, uses, rng, step) for step, rng in enumerate(rngs)]
    new = drawn[::uses]
    assert new == list(range(len(new)))
    for step, number in enumerate(drawn):
        newest = step // uses
        assert max(0, newest - pool + 1) <= number <= newest


def test_only_recent_lessons_are_kept(recipe, monkeypatch):
    monkeypatch.setattr(image_spatial, "POOL", 2)
    for batch in range(4):
        recipe.loss(batch, np.random.default_rng(0), 0)
    assert sorted(recipe._examples) == [2, 3]


def test_training_raises_acceptance(recipe):
    trainer = Trainer(recipe, recipe.config)
    before = recipe.evaluate(recipe.model.eval())
    record = trainer.run()
    after = record["held_out"]
    assert after["held_out_acceptance"] > before["held_out_acceptance"]
    assert 0 < after["held_out_acceptance_unseen_states"] <= 1


def test_from_the_recipes(folder):
    (record,) = recipes.train("image-spatial", folder, steps=2, batch_size=2)
    assert record["step"] == 2
    heads = load_model(SpatialHeads, folder / "spatial")
    assert heads.config.dim == 32
    card = (folder / "spatial" / "README.md").read_text()
    assert "Not good for" in card
    assert "2 scenes" in card
    index = json.loads((folder / "model_index.json").read_text())
    assert index["spatial"] == ["mmspec.models.llamagen.spatial_heads", "SpatialHeads"]


def test_heads_of_another_layout_are_refused(folder):
    recipes.train("image-spatial", folder, steps=1, batch_size=1)
    path = folder / "spatial" / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "hidden_dim": 24}))
    with pytest.raises(InputError, match="does not fit SpatialHeads"):
        load_model(SpatialHeads, folder / "spatial")
