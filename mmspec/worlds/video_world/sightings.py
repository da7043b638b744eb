"""Sightings of the objects that a prompt names, frame by frame, from a detector alone.

An object that crosses the picture's edge is in two pieces, and one that is passed may show in part:
the detector then names a wrong shape or none. Of such pieces the colour counts, and those edges of
their box that are the object's own tell where it is along its motion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..shapes.detector import Detection
from .occlusion import Box
from .prompts import Role

Array = npt.NDArray[Any]

SURE = 0.3  # the confidence from which a detection counts, GenEval's
_EDGE = 0.012  # of the picture's side: a pixel and a half of the detector's
_MORE = 0.03  # sides by which a box may be larger than the object
_SAME_LANE = 0.12  # between two pieces of one object, across its motion


@dataclass(frozen=True)
class Sighting:
    """Object in one frame, in sides of the picture.

    Attributes:
        centre: `[2]`, as well as can be told.
        known: `centre` where it is sure, else NaN.
        extent: width and height `[2]` of a whole object, else NaN.
    """

    centre: Array
    known: Array
    extent: Array = field(default_factory=lambda: np.full(2, np.nan))


def is_whole(hit: Detection, role: Role, frame: int) -> bool:
    """Test whether a detection is an object of the role in full view."""
    fits = hit.shape == role.shape and hit.color in role.colors(frame)
    return fits and hit.confidence > SURE and not _crosses(hit.box, role)


def is_piece(hit: Detection, role: Role, frame: int, extent: Array) -> bool:
    """Test whether a detection may be what is in view of an object that crosses the edge.

    Args:
        extent: of a whole object, `[2]`, NaN if none was ever seen; no piece is larger.
    """
    corners = np.array(hit.box).reshape(2, 2)
    small = not (corners[1] - corners[0] > extent + _MORE).any()
    return hit.color in role.colors(frame) and _crosses(hit.box, role) and small


def whole(box: Box) -> Sighting:
    """The object that fills a box."""
    corners = np.array(box).reshape(2, 2)
    return Sighting(corners.mean(0), corners.mean(0), corners[1] - corners[0])


def partial(
    boxes: Sequence[Box], role: Role, extent: Array, covers: Sequence[Box] = ()
) -> list[Sighting]:
    """The objects of which the boxes hold the parts in view.

    Args:
        boxes: of the pieces.
        extent: of a whole object, `[2]`, NaN if none was ever seen.
        covers: boxes of what may hide the rest.
    """
    lanes: list[list[Box]] = []
    for box in boxes:
        near = (
            lane
            for lane in lanes
            if role.count == 1 or abs(_across(lane[0], role) - _across(box, role)) < _SAME_LANE
        )
        lane = next(near, None)
        if lane is None:
            lanes.append([box])
        else:
            lane.append(box)
    return [_located(_joined(lane, role), role, extent, covers) for lane in lanes]


def _crosses(box: Box, role: Role) -> bool:
    """Test whether an object in the box may be half way out of the picture."""
    if not role.wraps or role.axis is None:
        return False
    return box[role.axis] < _EDGE or box[role.axis + 2] > 1 - _EDGE


def _across(box: Box, role: Role) -> float:
    """The middle of a box across the motion."""
    axis = 1 - (role.axis or 0)
    return (box[axis] + box[axis + 2]) / 2


def _joined(boxes: Sequence[Box], role: Role) -> Array:
    """Join pieces to one box `[corner, axis]`, beyond 1 if there are pieces at both edges."""
    corners = np.array(boxes).reshape(-1, 2, 2)  # [piece, corner, axis]
    if role.wraps:
        along = corners[:, :, role.axis]
        if along.min() < _EDGE and along.max() > 1 - _EDGE:
            corners[along.mean(1) < 0.5, :, role.axis] += 1
    return np.stack([corners[:, 0].min(0), corners[:, 1].max(0)])


def _located(box: Array, role: Role, extent: Array, covers: Sequence[Box]) -> Sighting:
    """Locate an object of which the box `[corner, axis]` holds what is in view."""
    centre, known = box.mean(0), np.full(2, np.nan)
    axis, full = role.axis, np.abs(box[1] - box[0] - extent) < _EDGE
    if axis is None:
        return Sighting(centre, centre if full.all() else known)
    low, high = box[:, axis]
    ends = [(cover[axis] - _EDGE, cover[axis + 2] + _EDGE) for cover in covers]
    own_low = low > _EDGE and not any(a <= low <= b for a, b in ends)
    own_high = abs(high - 1) > _EDGE and not any(a <= high <= b for a, b in ends)
    if (own_low and own_high) or full[axis]:
        known[axis] = centre[axis]
        if not covers:
            known = centre
    elif own_low:
        known[axis] = low + extent[axis] / 2
    elif own_high:
        known[axis] = high - extent[axis] / 2
    return Sighting(np.where(np.isfinite(known), known, centre), known)
