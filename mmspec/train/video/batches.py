"""Batches of the video world as tensors."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...worlds.shapes.scene import in_turn
from ...worlds.shapes.vocabulary import Split
from ...worlds.video_world.clip import render_clip, sample
from ...worlds.video_world.vocabulary import KINDS


def clip_batch(
    rng: np.random.Generator,
    size: int,
    frames: int,
    resolution: int,
    split: Split = "train",
    late: int = 0,
) -> tuple[list[str], Tensor]:
    """`size` captions and their clips `[size, frames, 3, resolution, resolution]` in [-1, 1].

    The kinds take turns, so that every batch is balanced.

    Args:
        late: the clips begin at a frame below this one, at random, or at the first if it is 0.
    """
    captions, clips = [], []
    for kind in in_turn(rng, KINDS, size):
        prompt, clip = sample(rng, kind, split)
        start = int(rng.integers(late)) if late else 0
        captions.append(prompt.prompt)
        clips.append(render_clip(clip, range(start, start + frames), resolution))
    pixels = torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3)
    return captions, pixels.float().div_(127.5).sub_(1)
