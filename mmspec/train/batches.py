"""Batches of the shapes world as tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from ..worlds.shapes import TASKS, Scene, render, sample
from ..worlds.shapes.patches import LABELS, patch_labels
from ..worlds.shapes.prompts import mixed_caption
from ..worlds.shapes.scene import in_turn, sample_mixed
from ..worlds.shapes.vocabulary import Split, Task

# what is hard comes more often; single objects are in every other task too
MIX: tuple[Task, ...] = (
    *("single_object", "two_object", "counting", "colors", "position", "color_attr"),
    *("two_object", "counting", "colors", "position", "color_attr"),
    *("two_object", "counting", "position", "color_attr"),
    *("position", "color_attr"),
)
# of the training scenes are of one to four things of any kind, whose captions say more combinations
# than the tasks do: what was never said together has to be drawn together
MIXED = 0.5
Scenes = tuple[list[str], Tensor, Tensor]
"""Captions, pictures or their tokens, and `SCENE_LABELS` of their patches `[B, grid², 2]`."""
SCENE_LABELS = {name: LABELS[name] for name in ("shape", "color")}  # what a scene's patches have


def scene_batch(
    rng: np.random.Generator, size: int, resolution: int, split: Split = "train"
) -> tuple[list[str], Tensor]:
    """`size` captions and their pictures `[size, 3, resolution, resolution]` in [-1, 1].

    The tasks take turns, so that every batch is balanced.
    """
    captions, scenes = zip(*_scenes(rng, size, split), strict=True)
    return list(captions), _pixels(scenes, resolution)


def labelled_batch(
    rng: np.random.Generator, size: int, resolution: int, grid: int, split: Split = "train"
) -> tuple[list[str], Tensor, Tensor]:
    """`scene_batch`, and the `SCENE_LABELS` `[size, grid², 2]` of a grid of patches."""
    captions, scenes = zip(*_scenes(rng, size, split), strict=True)
    shown = np.stack([patch_labels(scene, grid, resolution // grid) for scene in scenes])
    labels = torch.from_numpy(shown).flatten(1, 2)
    columns = [list(LABELS).index(name) for name in SCENE_LABELS]
    return list(captions), _pixels(scenes, resolution), labels[..., columns]


def draw_scenes(
    size: int, resolution: int, rng: np.random.Generator, step: int
) -> tuple[list[str], Tensor]:
    """`scene_batch` of a training step, as the trainer calls it."""
    return scene_batch(rng, size, resolution)


def draw_labelled(
    size: int, resolution: int, grid: int, rng: np.random.Generator, step: int
) -> tuple[list[str], Tensor, Tensor]:
    """`labelled_batch` of a training step, as the trainer calls it."""
    return labelled_batch(rng, size, resolution, grid)


def _scenes(rng: np.random.Generator, size: int, split: Split) -> Iterator[tuple[str, Scene]]:
    """Captions and what they tell of."""
    for task in in_turn(rng, MIX if split == "train" else TASKS, size):
        if split == "train" and rng.random() < MIXED:
            scene = sample_mixed(rng)
            yield mixed_caption(rng, [(item.shape, item.color) for item in scene.items]), scene
        else:
            prompt, scene = sample(rng, task, split)
            yield prompt.prompt, scene


def _pixels(scenes: Sequence[Scene], resolution: int) -> Tensor:
    """Pictures of scenes `[B, 3, resolution, resolution]` in [-1, 1]."""
    pictures = np.stack([render(scene, resolution) for scene in scenes])
    return torch.from_numpy(pictures).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
