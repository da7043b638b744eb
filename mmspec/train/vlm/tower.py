"""Recipe of a vision tower that sees before a language model reads from it.

Trained together from nothing, a language model first learns what is said of pictures in general,
and for long there is no gradient that would show a tower what to look for. Here every patch is
asked what it shows and where it is (`PatchReader`). It takes the place
that contrastive pre-training has in LLaVA (Liu et al. 2023, "Visual Instruction Tuning").
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from ...files import atomic_folder
from ...worlds.shapes.exchanges import KINDS, draw, sample_picture
from ...worlds.shapes.scene import in_turn
from ...worlds.shapes.vocabulary import Split
from ..base import BaseRecipe
from ..card import write_card
from ..patch_reader import PatchReader
from ..trainer import Loss, TrainConfig
from .data import NOTHING, all_labels, label_sizes
from .target import vision_config, vlm_folder

HELD_OUT = 64  # pictures of an evaluation


class ReadTower(nn.Module):
    """A tower, and a reader of its patches."""

    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__()
        self.tower = CLIPVisionModel(config)
        patches = config.image_size // config.patch_size
        self.reader = PatchReader(config.hidden_size, label_sizes(patches), NOTHING)

    def forward(self, pictures: Tensor) -> Tensor:
        """Features `[B, P, D]` of pictures `[B, S, S, 3]` of bytes."""
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        features: Tensor = self.tower(pixel_values=pixels).last_hidden_state[:, 1:]
        return features


class VlmTowerRecipe(BaseRecipe):
    """Trains `CLIPVisionModel` to say what every patch of a picture shows.

    Args:
        config, rate: see `BaseRecipe`; a batch is of pictures.
        pipeline: folder in which the tower is kept for the models that begin with it.
    """

    def __init__(self, config: TrainConfig, pipeline: Path, rate: float = 2e-3) -> None:
        super().__init__(config, pipeline, rate)
        self.folder = vlm_folder(pipeline, "tower")
        tower = vision_config()
        self.model = ReadTower(tower)
        self.patches, self.patch = tower.image_size // tower.patch_size, tower.patch_size
        self.draw = partial(draw_labelled, config.batch_size, self.patches, self.patch)

    def loss(self, batch: tuple[Tensor, Tensor], rng: np.random.Generator, step: int) -> Loss:
        pictures, labels = (value.to(self.config.device) for value in batch)
        return self.model.reader.loss(self.model(pictures), labels), {}

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        """Accuracy on patches that show something, by label."""
        sizes, rng = (HELD_OUT, self.patches, self.patch), self.held_out_rng()
        pictures, labels = draw_labelled(*sizes, rng, 0, "held_out")
        figures = {}
        logits = model.reader(model(pictures.to(self.config.device)))
        names = label_sizes(self.patches)
        for name, said, wanted in zip(names, logits, labels.unbind(-1), strict=True):
            shown = wanted > 0
            right = said.argmax(-1).cpu()[shown] == wanted[shown]
            figures[f"held_out_{name}"] = float(right.float().mean())
        return figures

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        tower: Any = model.get_submodule("tower")
        with atomic_folder(self.folder) as part:
            tower.half().save_pretrained(part)
        write_card(
            self.folder,
            title="Vision tower of the shapes world",
            purpose="sees what patches show; vision-language models begin with it",
            limits="anything but the shapes world and its charts",
            record={"component": "tower", **record},
        )


def draw_labelled(
    size: int, patches: int, patch: int, rng: np.random.Generator, step: int, split: Split = "train"
) -> tuple[Tensor, Tensor]:
    """Pictures `[B, S, S, 3]`, uint8, of all kinds in turn, and `all_labels` of them."""
    drawn = [sample_picture(rng, kind, split) for kind in in_turn(rng, KINDS, size)]
    pictures = np.stack([draw(picture, patches * patch) for picture in drawn])
    return torch.from_numpy(pictures), all_labels(drawn, patches, patch)
