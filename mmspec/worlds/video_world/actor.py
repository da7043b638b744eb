"""Sightings of the objects of one clause, and whether they move as they should."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.detector import Detection, read
from .occlusion import Box, pieces, touch
from .prompts import Role
from .sightings import Sighting, is_piece, is_whole, partial, whole

Array = npt.NDArray[Any]
Bodies = list[list[Box]]  # of two roles that overlap, the boxes of each one's pieces

_JUMP, _FASTEST = 0.06, 0.03  # sides: what a place may be off, and what an object moves a frame
_WINDOW = 6  # frames over which a displacement is measured
_SLOWEST = 0.004  # sides a frame; clips have 0.01 at least
_STRAY = 0.05  # sides that an object may be off where it should stand
_TURNING = 0.15  # sides between the edge and what may slow down and turn there


@dataclass(frozen=True)
class View:
    """Detections in a frame.

    Attributes:
        hits: the objects, boxes in sides of the picture.
        colors: of each pixel, `[h, w]`, as `read` gives them.
    """

    hits: list[Detection]
    colors: Array

    @classmethod
    def of(cls, frame: Array) -> View:
        """The view of a square frame, uint8 `[H, W, 3]`."""
        hits, colors = read(frame)
        boxes: list[Any] = [tuple(edge / len(frame) for edge in hit.box) for hit in hits]
        return cls([replace(h, box=box) for h, box in zip(hits, boxes, strict=True)], colors)

    def bodies(self, roles: Sequence[Role]) -> Bodies | None:
        """The pieces of two roles that may overlap, if now they touch."""
        if not all(role.overlaps for role in roles):
            return None
        found = [pieces(self.colors, role.color) for role in roles]
        return found if touch(*found) else None


class Actor:
    """Sightings and paths of a role in a clip.

    Attributes:
        seen: its sightings in each frame.
        extent: of a whole object, `[2]`, NaN if none was seen.
        there: in which frames each of its objects is seen, `[count, T]` bool.
        paths: of its objects, `[count, T, 2]`, and where they jump, `[count, T]`.
    """

    def __init__(
        self,
        roles: Sequence[Role],
        index: int,
        views: Sequence[View],
        bodies: Sequence[Bodies | None],
        first: int,
    ) -> None:
        self.role = role = roles[index]
        wholes: list[list[Sighting]] = []
        for frame, (view, pair) in enumerate(zip(views, bodies, strict=True), first):
            hits = [] if pair else view.hits
            wholes.append([whole(hit.box) for hit in hits if is_whole(hit, role, frame)])
        extents = [sighting.extent for seen in wholes for sighting in seen]
        self.extent = np.median(extents, 0) if extents else np.full(2, np.nan)
        self.seen: list[list[Sighting]] = []
        for frame, (view, pair) in enumerate(zip(views, bodies, strict=True), first):
            seen = wholes[frame - first]
            if pair:
                parts = partial(pair[index], role, self.extent, covers=pair[1 - index])
            else:
                cut = [hit.box for hit in view.hits if is_piece(hit, role, frame, self.extent)]
                parts = partial(cut, role, self.extent)
            self.seen.append(seen + parts[: max(role.count - len(seen), 0)])
        tracks, self.there = link(self.seen, role)
        paths, jumps = zip(*(unrolled(track, role) for track in tracks), strict=True)
        self.paths, self.jumps = np.stack(paths), np.stack(jumps)

    def motion(self, hidden: Array) -> Array:
        """Judge whether each object moves as it should, `[count, T]`: 1, or 0, also if it is gone.

        Args:
            hidden: where another object is in front of it, `[T]` bool.
        """
        rows = [self._moves(*each) for each in zip(self.paths, self.jumps, strict=True)]
        known = np.cumsum(self.there | hidden, axis=1)
        start, end = _window(known.shape[1], _WINDOW)
        lately = known[:, end] > np.where(start > 0, known[:, start - 1], 0)
        return (np.stack(rows) & lately).astype(float)

    def apart(self, other: Actor) -> Array:
        """Way from its first object to another's, `[T, 2]`, the shorter one round the picture."""
        offset = other.paths[0] - self.paths[0]
        for role in (self.role, other.role):
            if role.wraps:
                offset[:, role.axis] -= np.rint(offset[:, role.axis])
        return np.asarray(offset)

    def _moves(self, path: Array, jumps: Array) -> Array:
        axis, usual = self.role.axis, np.median(path[:_WINDOW], 0)
        if axis is None:
            return np.asarray(np.linalg.norm(path - usual, axis=-1) <= _STRAY)
        start, end = _window(len(path), _WINDOW)
        count = np.cumsum(jumps)
        smooth = count[end] == count[start]
        along, across = (path[end] - path[start])[:, [axis, 1 - axis]].T
        least = _SLOWEST * (end - start)
        if self.role.sign:
            along = along * self.role.sign
            return np.asarray(smooth & (along >= least) & (np.abs(across) <= along))
        level = np.abs(path[:, 1 - axis] - usual[1 - axis]) <= _STRAY
        start, end = _window(len(path), 2 * _WINDOW)
        ranges = [np.ptp(path[a : b + 1, axis]) for a, b in zip(start, end, strict=True)]
        room = 0.5 - np.abs(path[:, axis] - 0.5) - self.extent[axis] / 2
        turns = (np.array(ranges) >= least) & (room < _TURNING)
        return np.asarray(smooth & level & ((np.abs(along) >= least) | turns))


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


def _window(frames: int, length: int) -> tuple[Array, Array]:
    """First and last frame of the window that ends in each frame; the first ones share theirs."""
    times = np.arange(frames)
    return np.maximum(times - length, 0), np.minimum(np.maximum(times, length), frames - 1)
