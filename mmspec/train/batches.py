"""Batches of the shapes world as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..worlds.shapes import TASKS, render, sample
from ..worlds.shapes.scene import in_turn
from ..worlds.shapes.vocabulary import Split, Task

# what is hard comes more often; single objects are in every other task too
MIX: tuple[Task, ...] = (
    *("single_object", "two_object", "counting", "colors", "position", "color_attr"),
    *("two_object", "counting", "colors", "position", "color_attr"),
    *("two_object", "counting", "position", "color_attr"),
    *("position", "color_attr"),
)


def scene_batch(
    rng: np.random.Generator, size: int, resolution: int, split: Split = "train"
) -> tuple[list[str], Tensor]:
    """`size` captions and their pictures `[size, 3, resolution, resolution]` in [-1, 1].

    The tasks take turns, so that every batch is balanced.
    """
    captions, pictures = [], []
    for task in in_turn(rng, MIX if split == "train" else TASKS, size):
        prompt, scene = sample(rng, task, split)
        captions.append(prompt.prompt)
        pictures.append(render(scene, resolution))
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return captions, pixels.float().div_(127.5).sub_(1)


def draw_scenes(
    size: int, resolution: int, rng: np.random.Generator, step: int
) -> tuple[list[str], Tensor]:
    """`scene_batch` of a training step, as the trainer calls it."""
    return scene_batch(rng, size, resolution)
