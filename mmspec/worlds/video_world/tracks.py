"""Paths of objects: sightings linked over time, unrolled across the picture's edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .roles import Role
from .sightings import Sighting

Array = npt.NDArray[Any]

_JUMP, _FASTEST = 0.06, 0.03  # sides: what a place may be off, and what an object moves a frame


def link(frames: Sequence[Sequence[Sighting]], role: Role) -> tuple[Array, Array]:
    """Known places `[count, T, 2]` of a role's objects, NaN where one has none, and in which frames
    each is seen, `[count, T]` bool.

    Each sighting goes to the object that was last seen nearest to it, the nearest pair first; one
    not seen yet takes the most confident of those left.
    """
    tracks = np.full((role.count, len(frames), 2), np.nan)
    seen = np.zeros(tracks.shape[:2], bool)
    last: list[Array | None] = [None] * role.count
    for time, sightings in enumerate(frames):
        pairs = [
            (np.inf if place is None else _distance(place, sighting.centre, role), index, number)
            for index, sighting in enumerate(sightings)
            for number, place in enumerate(last)
        ]
        left, waiting = set(range(len(sightings))), set(range(role.count))
        for _, index, number in sorted(pairs):
            if index in left and number in waiting:
                left.remove(index)
                waiting.remove(number)
                found = sightings[index]
                tracks[number, time], last[number] = found.known, found.centre
                seen[number, time] = True
    return tracks, seen


def unrolled(track: Array, role: Role) -> tuple[Array, Array]:
    """A track `[T, 2]` as a path without gaps, and in which frames it jumps, `[T]` bool.

    Across the edges that the object leaves by the path goes on beyond the picture. Between
    sightings it is straight along the motion, and else where it was last; before the first and
    after the last one an object that moves in a direction goes on at its usual speed. All NaN if
    the object is placed less than twice; the path of one that is never seen whole, so that its
    place across the motion is not known, is level.
    """
    path, jumps = np.full(track.shape, np.nan), np.zeros(len(track), bool)
    times = np.arange(len(track))
    across = None if role.axis is None else 1 - role.axis
    for axis in (0, 1):
        known = np.flatnonzero(np.isfinite(track[:, axis]))
        if len(known) < 2 and axis == across:
            path[:, axis] = track[known[0], axis] if len(known) else 0.5
            continue
        if len(known) < 2:
            return np.full(track.shape, np.nan), jumps
        steps, gaps = np.diff(track[known, axis]), np.diff(known)
        moves = role.wraps and axis == role.axis
        if moves:
            steps -= np.rint(steps)
        places = track[known[0], axis] + np.concatenate([[0], np.cumsum(steps)])
        latest = np.maximum(np.searchsorted(known, times, "right") - 1, 0)
        along = axis == role.axis
        path[:, axis] = np.interp(times, known, places) if along else places[latest]
        if moves:
            speed = float(np.median(steps / gaps))
            beyond = np.minimum(times - known[0], 0) + np.maximum(times - known[-1], 0)
            path[:, axis] += speed * beyond
        jumps[known[1:][np.abs(steps) > _JUMP + _FASTEST * gaps]] = True
    return path, jumps


def _distance(a: Array, b: Array, role: Role) -> float:
    offset = b - a
    if role.wraps:
        offset[role.axis] -= np.rint(offset[role.axis])
    return float(np.linalg.norm(offset))
