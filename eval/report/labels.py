"""Names beside points, where they cover the least.

By hand: on the figures of `assets/reports` names cover each other and the lines less than
adjustText 1.4 has them do (246 against 176,758 and 26,487 against 62,629 square pixels).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Point = tuple[float, float]
Boxes = npt.NDArray[np.float64]  # [N, 4]: left, bottom, right, top, in pixels

_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
_REACHES = (6, 14, 24, 36, 50, 66)
_SMALL = (4, 9, 15, 24, 36, 50)
_APART = np.array([-3, -2, 3, 2])  # pixels: numbers that touch would read as one
_ALIGN = {1: "left", 0: "center", -1: "right"}


def place_labels(
    figure: Any,
    axes: Any,
    points: Mapping[str, Point],
    bars: Sequence[Sequence[Point]],
    colors: Mapping[str, str],
    texts: Mapping[str, str] | None = None,
) -> None:
    """Write each name beside its point; of some places around it the one that overlaps least.

    What counts is other names, points, `bars` (each by opposite corners, in data units), and what
    sticks out of the axes.

    Args:
        texts: what to write in place of some names, smaller than a name; "": nothing.
    """
    texts = texts or {}
    figure.draw_without_rendering()  # settles the layout
    figure.set_layout_engine("none")
    renderer, scale = figure.canvas.get_renderer(), figure.dpi / 72
    at = {name: axes.transData.transform(point) for name, point in points.items()}
    taken = [np.array([x - 6, y - 6, x + 6, y + 6]) for x, y in at.values()]
    corners = [np.sort(axes.transData.transform(ends), axis=0) for ends in bars]
    lines = np.array([[*low - 2, *high + 2] for low, high in corners]).reshape(-1, 4)
    frame = axes.get_window_extent(renderer).extents[None]
    # the hardest first: few places are left for long names
    for name in sorted(points, key=lambda name: name in texts):
        point = points[name]
        look = {"fontsize": 8} if name in texts else {"fontweight": "bold"}
        text = texts.get(name, in_lines(name))
        if not text:
            continue
        label = axes.annotate(
            text, point, (0, 0), textcoords="offset points", color=colors[name], **look
        )
        extent = label.get_window_extent(renderer)
        reaches = _SMALL if name in texts else _REACHES
        places = [(*direction, reach) for reach in reaches for direction in _DIRECTIONS]
        boxes = _boxes(at[name], (extent.width, extent.height), places, scale)
        cost = _shared(boxes, lines) + 4 * _shared(boxes, np.array(taken))
        cost += extent.width * extent.height - _shared(boxes, frame)
        best = int(np.argmin(cost + [reach for *_, reach in places]))
        right, up, reach = places[best]
        label.set_position(_offset(right, up, reach))
        label.set(ha=_ALIGN[right], va="bottom" if up > 0 else "top")
        taken.append(boxes[best] + _APART)
        if reach > 14:  # far from its point: a thin line leads there
            near = np.clip(at[name], boxes[best][:2], boxes[best][2:])
            ends = np.array([point, axes.transData.inverted().transform(near)])
            axes.plot(*ends.T, color=colors[name], linewidth=0.7, scalex=False, scaley=False)


def in_lines(name: str, most: int = 34) -> str:
    """A method's name on lines of at most so many characters, where its settings let it."""
    lines = [""]
    for piece in re.split(r"(?<=[\[,])", name):
        if lines[-1] and len(lines[-1] + piece) > most:
            lines.append("")
        lines[-1] += piece
    return "\n".join(lines)


def _offset(right: int, up: int, reach: int) -> Point:
    """Offset of a label's corner from its point, in units of text."""
    return right * reach, up * reach * (1 if right else 1.3)


def _boxes(
    point: Point, size: Point, places: Sequence[tuple[int, int, int]], scale: float
) -> Boxes:
    """Boxes of a label of `size` at each of some places around a point, in pixels."""
    corner = np.array([_offset(*place) for place in places]) * scale + point
    right, up = np.array([place[:2] for place in places]).T
    low = corner - np.stack([(1 - right) / 2, up < 0], 1) * size
    return np.concatenate([low, low + size], 1)


def _shared(boxes: Boxes, others: Boxes) -> npt.NDArray[np.float64]:
    """Area `[N]` that each box has in common with all the others together, counted one by one."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.asarray(np.clip(high - low, 0, None).prod(-1).sum(-1))
