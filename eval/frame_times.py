"""Durations of a clip's frames, in files that hold times in whole units."""

from __future__ import annotations

from itertools import pairwise

GIF = 100  # units a second
QUICKEST = 2  # that viewers of GIF keep; what is shorter they show for ten


def frame_times(count: int, fps: float, units: int) -> list[int]:
    """Units that each of `count` frames is shown: together `count / fps` seconds.

    Times that are rounded by themselves would add up: at 16 frames a second a GIF would be a
    twentieth too fast.
    """
    ends = [round(n * units / fps) for n in range(count + 1)]
    return [end - start for start, end in pairwise(ends)]


def gif_times(count: int, fps: float) -> dict[int, int]:
    """Milliseconds that a GIF shows frames, by their places; some are left out of a quick clip."""
    step = -int(-fps * QUICKEST // GIF) or 1
    ends = [round(min(n, count) * GIF / fps) for n in range(0, count + step, step)]
    times = [10 * (end - start) for start, end in pairwise(ends)]
    return dict(zip(range(0, count, step), times, strict=True))
