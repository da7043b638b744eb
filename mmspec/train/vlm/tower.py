"""Recipe of a vision tower that sees before a language model reads from it.

Trained together from nothing, a language model first learns what is said of pictures in general,
and for long there is no gradient that would show a tower what to look for. Here every patch is
asked what it shows: dense labels teach in minutes what answers teach in hours. It takes the place
that contrastive pre-training has in LLaVA (Liu et al. 2023, "Visual Instruction Tuning").
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import CLIPVisionConfig, CLIPVisionModel

from ...files import atomic_folder
from ...worlds.shapes.exchanges import KINDS, draw, sample_picture
from ...worlds.shapes.patches import LABELS, patch_labels
from ...worlds.shapes.scene import in_turn
from ...worlds.shapes.vocabulary import Split
from ..base import BaseRecipe
from ..card import write_card
from ..trainer import Loss, TrainConfig
from .target import vision_config, vlm_folder

NOTHING = 0.2  # weight of a patch without a label: most have none
HELD_OUT = 64  # pictures of an evaluation


class Labeller(nn.Module):
    """A tower, and a linear layer that reads labels from its patches."""

    def __init__(self, config: CLIPVisionConfig) -> None:
        super().__init__()
        self.tower = CLIPVisionModel(config)
        self.output = nn.Linear(config.hidden_size, sum(LABELS.values()))

    def forward(self, pictures: Tensor) -> list[Tensor]:
        """Logits `[B, P, K]` of each of `LABELS`, of pictures `[B, S, S, 3]` of bytes."""
        pixels = pictures.permute(0, 3, 1, 2).float() / 127.5 - 1
        seen = self.tower(pixel_values=pixels).last_hidden_state[:, 1:]
        return list(self.output(seen).split(list(LABELS.values()), dim=-1))


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
        self.model = Labeller(tower)
        self.patches, self.patch = tower.image_size // tower.patch_size, tower.patch_size
        self.draw = partial(draw_labelled, config.batch_size, self.patches, self.patch)

    def loss(self, batch: tuple[Tensor, Tensor], rng: np.random.Generator, step: int) -> Loss:
        pictures, labels = (value.to(self.config.device) for value in batch)
        total = torch.zeros((), device=pictures.device)
        for logits, wanted in zip(self.model(pictures), labels.unbind(-1), strict=True):
            weight = torch.ones(logits.shape[-1], device=logits.device)
            weight[0] = NOTHING
            total = total + F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), weight)
        return total, {}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Accuracy on patches that show something, by label."""
        sizes, rng = (HELD_OUT, self.patches, self.patch), self.held_out_rng()
        pictures, labels = draw_labelled(*sizes, rng, 0, "held_out")
        figures = {}
        logits = model(pictures.to(self.config.device))
        for name, said, wanted in zip(LABELS, logits, labels.unbind(-1), strict=True):
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
    """Pictures `[B, S, S, 3]`, uint8, of all kinds in turn, and their `patch_labels`."""
    drawn = [sample_picture(rng, kind, split) for kind in in_turn(rng, KINDS, size)]
    pictures = np.stack([draw(picture, patches * patch) for picture in drawn])
    labels = np.stack([patch_labels(picture, patches, patch) for picture in drawn])
    return torch.from_numpy(pictures), torch.from_numpy(labels).flatten(1, 2)
