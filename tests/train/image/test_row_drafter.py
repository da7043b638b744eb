"""The recipe of the row drafter, in miniature: a lesson by hand, a folder that draws with it."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from mmspec import ImagePipeline, SpecConfig
from mmspec.models.llamagen.transformer import causal_mask
from mmspec.train import recipes
from mmspec.train.image import distillation_data as examples
from mmspec.train.image import drafter, row_drafter
from mmspec.train.image.row_drafter import ImageRowDrafterRecipe
from mmspec.train.trainer import TrainConfig

SMALL = {**drafter.DRAFTER, "dim": 32, "n_head": 2, "n_layer": 1, "multiple_of": 16}


@pytest.fixture
def folder(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(examples, "HELD_OUT", 2)
    monkeypatch.setattr(row_drafter, "DRAFTER", SMALL)
    monkeypatch.setattr(row_drafter, "BLOCK", 4)
    copied = tmp_path / "image"
    shutil.copytree(tiny_folder, copied)
    return copied


@torch.no_grad()
def test_a_lesson_by_hand(folder, tmp_path):
    """A pass over what stands in front of the block and over the block, and nothing behind it."""
    recipe = ImageRowDrafterRecipe(TrainConfig(tmp_path / "run", 10, 3), folder)
    for weight in recipe.model.parameters():
        torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    example, model = recipe.example_number(2), recipe.model
    first, size = torch.tensor([0, 5, 13]), 3
    logits, laws = recipe.lesson(model, example, first, size)
    prefix, mask = recipe.condition(model, example.features, example.mask)
    width = prefix.shape[1]
    for row, start in enumerate(first.tolist()):
        text = torch.cat([example.tokens[row, :start], torch.full((size,), 128)])
        both = []
        for r in (row, row + 3):
            h = torch.cat([prefix[r : r + 1], model.tok_embeddings(text)[None]], dim=1)
            seen = causal_mask(mask[r : r + 1], h.shape[1])
            seen[..., width + start :, width:] = 0
            for layer in model.layers:
                h = layer(h, model.rotary()[: h.shape[1]], seen)
            both.append(model.output(model.norm(h[0, -size:])))
        wanted = both[1] + 2 * (both[0] - both[1])
        torch.testing.assert_close(logits[row], wanted, rtol=1e-4, atol=1e-4)
        places = slice(start, start + size)
        assert torch.equal(laws.probs[row], example.probs[row, places])
        assert torch.equal(laws.ids[row], example.ids[row, places])


def test_blocks_end_inside_the_picture(folder, tmp_path):
    recipe = ImageRowDrafterRecipe(TrainConfig(tmp_path / "run", 10, 3), folder)
    example, rng = recipe.example_number(0), np.random.default_rng(0)
    starts = torch.cat([recipe._starts(example, 4, rng) for _ in range(100)])
    assert (int(starts.min()), int(starts.max())) == (0, 12)


def test_a_trained_folder_draws(folder):
    (record,) = recipes.train("image-rows", folder, steps=3, batch_size=2, evaluate_every=3)
    assert record["step"] == 3
    pipe = ImagePipeline.from_pretrained(folder)
    pipe.set_progress_bar_config(disable=True)
    asked = dict(prompt="a red circle", temperature=0.0, output_type="tokens")
    plain = pipe(**asked).images
    pipe.enable_speculation(SpecConfig("maskgit-rows", block_length=4, num_draft_tokens=8))
    assert torch.equal(pipe(**asked).images, plain)
