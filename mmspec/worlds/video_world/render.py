"""Clips to frames."""

from __future__ import annotations

import numpy as np
from PIL import Image

from ..shapes.render import paint, render
from ..shapes.scene import Scene
from .clip import Clip


def render_clip(clip: Clip, frames: int | range, resolution: int = 64) -> np.ndarray:
    """RGB frames `[T, resolution, resolution, 3]`, uint8.

    Args:
        frames: how many from the first, or which; a window alone is what it is in the whole clip.
        resolution: side of a frame in pixels.
    """
    numbers = range(frames) if isinstance(frames, int) else frames
    empty = Image.fromarray(render(Scene((), clip.background), resolution))
    video = np.empty((len(numbers), resolution, resolution, 3), np.uint8)
    for place, number in enumerate(numbers):
        picture = empty.copy()
        for mover in clip.movers:
            for item in mover.drawn(number):
                paint(picture, item)
        video[place] = np.asarray(picture)
    return video
