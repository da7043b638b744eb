"""The embedded CLIP's recipe: its loss by hand, its data, and a short run from start to card."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from mmspec.rewards.networks.clip import ShapesCLIP
from mmspec.train.clip import ClipRecipe, contrast, draw_pairs
from mmspec.train.recipes import train
from mmspec.train.trainer import TrainConfig, Trainer


def test_contrast_by_hand():
    """Two pictures; picture 0 may also show caption 1, which then counts for neither."""
    image = torch.eye(2, 3)
    text = torch.tensor([[1.0, 0, 0], [0.6, 0.8, 0], [0, 0, 1.0], [0, 1.0, 0]])
    scale = torch.tensor(2.0)
    doubtful = torch.tensor([[True, True], [False, True]])
    e = np.exp
    rows = [e(2.0) / (e(2.0) + e(0) + e(0)), e(1.6) / (e(0) + e(1.6) + e(0) + e(2.0))]
    columns = [e(2.0) / (e(2.0) + e(0)), 1.0]
    expected = -(np.log(rows).mean() + np.log(columns).mean()) / 2
    assert float(contrast(image, text, scale, doubtful)) == pytest.approx(expected, abs=1e-6)


def test_own_captions_are_never_left_out():
    image = torch.nn.functional.normalize(torch.randn(4, 8), dim=-1)
    text = torch.nn.functional.normalize(torch.randn(8, 8), dim=-1)
    everything = torch.ones(4, 4, dtype=torch.bool)
    assert torch.isfinite(contrast(image, text, torch.tensor(3.0), everything))


def test_pairs_of_a_step():
    first, again = (draw_pairs(40, np.random.default_rng(5), 0) for _ in range(2))
    assert first.pictures.shape == (40, 64, 64, 3)
    assert first.pictures.dtype == torch.uint8
    assert (first.captions, first.foils) == (again.captions, again.foils)
    assert torch.equal(first.pictures, again.pictures)
    assert first.doubtful.diagonal().all()
    same = [[a == b for b in first.captions] for a in first.captions]
    assert first.doubtful[torch.tensor(same)].all()  # two of one caption are no contrast
    assert not first.doubtful.all()


def test_averages_hold_numbers(tmp_path):
    """The text tower's mask is minus infinity: its moving average would be no number."""
    config = TrainConfig(tmp_path, steps=3, batch_size=4, ema=0.5)
    trainer = Trainer(ClipRecipe(config, tmp_path), config)
    for step in range(3):
        trainer._train_step(draw_pairs(4, np.random.default_rng(step), step))
    for module in (trainer.model, trainer.average.module):
        masks = [b for name, b in module.named_buffers() if name.endswith("attn_mask")]
        assert masks
        assert all(not mask.isnan().any() for mask in masks)
        tokens = torch.zeros(2, 16, dtype=torch.long)
        assert torch.isfinite(module.eval().encode_text(tokens)).all()


def test_a_short_run(tmp_path, monkeypatch):
    monkeypatch.setattr("mmspec.train.clip.CONTESTS", 1)
    monkeypatch.setattr("mmspec.train.clip.CANDIDATES", 10)
    [record] = train("clip", tmp_path, steps=2, batch_size=4, workers=0)
    assert record["step"] == 2
    folder = tmp_path / "clip"
    names = {path.name for path in folder.iterdir()}
    assert {"open_clip_config.json", "open_clip_model.safetensors", "README.md"} <= names
    assert json.loads((folder / "training.json").read_text())["held_out"] == record["held_out"]
    assert "Not good for: anything but the shapes world" in (folder / "README.md").read_text()
    clip = ShapesCLIP.from_pretrained(folder)
    pairs = draw_pairs(3, np.random.default_rng(0), 0)
    features = clip.features(pairs.pictures.permute(0, 3, 1, 2))
    assert features.shape == (3, 128)
    assert not (tmp_path / "model_index.json").exists()  # no part of a pipeline
