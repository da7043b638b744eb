"""Batches of the shapes world as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..worlds.shapes import TASKS, render, sample
from ..worlds.shapes.vocabulary import Split


def scene_batch(
    rng: np.random.Generator, size: int, resolution: int, split: Split = "train"
) -> tuple[list[str], Tensor]:
    """`size` captions and their pictures `[size, 3, resolution, resolution]` in [-1, 1].

    The six tasks take turns, so that every batch is balanced.
    """
    captions, pictures = [], []
    first = int(rng.integers(len(TASKS)))
    for i in range(size):
        prompt, scene = sample(rng, TASKS[(first + i) % len(TASKS)], split)
        captions.append(prompt.prompt)
        pictures.append(render(scene, resolution))
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2)
    return captions, pixels.float().div_(127.5).sub_(1)
