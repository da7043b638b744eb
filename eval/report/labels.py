"""Names beside points, where they cover the least."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Point = tuple[float, float]

_DIRECTIONS = ((1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
_ALIGN = {1: "left", 0: "center", -1: "right"}


def place_labels(
    figure: Any,
    axes: Any,
    points: Mapping[str, Point],
    bars: Sequence[Sequence[Point]],
    colors: Mapping[str, str],
) -> None:
    """Write each name beside its point; of some places around it the one that overlaps least.

    What counts is other names, points, `bars` (each by opposite corners, in data units), and what
    sticks out of the axes.
    """
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()  # settles the layout
    figure.set_layout_engine("none")
    renderer = figure.canvas.get_renderer()
    at = {name: axes.transData.transform(point) for name, point in points.items()}
    taken = [Bbox.from_bounds(x - 6, y - 6, 12, 12) for x, y in at.values()]
    corners = [np.sort(axes.transData.transform(ends), axis=0) for ends in bars]
    lines = [Bbox(pair).padded(2) for pair in corners]
    frame = axes.get_window_extent(renderer)
    for name, point in points.items():
        best = None
        for reach in (6, 14, 24, 36, 50, 66):
            for right, up in _DIRECTIONS:
                label = axes.annotate(
                    name,
                    point,
                    (right * reach, up * reach * (1 if right else 1.3)),
                    textcoords="offset points",
                    ha=_ALIGN[right],
                    va="bottom" if up > 0 else "top",
                    color=colors[name],
                    fontweight="bold",
                )
                box = label.get_window_extent(renderer)
                cost = sum(_shared(box, other) for other in lines)
                cost += 4 * sum(_shared(box, other) for other in taken)
                cost += box.width * box.height - _shared(box, frame) + reach
                if best is None or cost < best[0]:
                    if best is not None:
                        best[1].remove()
                    best = cost, label, box, reach
                else:
                    label.remove()
        assert best is not None
        _, _, box, reach = best
        taken.append(box)
        if reach > 14:  # far from its point: a thin line leads there
            near = np.clip(at[name], box.min, box.max)
            ends = np.array([point, axes.transData.inverted().transform(near)])
            axes.plot(*ends.T, color=colors[name], linewidth=0.7, scalex=False, scaley=False)


def _shared(a: Any, b: Any) -> float:
    """Area that two boxes have in common."""
    width = min(a.x1, b.x1) - max(a.x0, b.x0)
    height = min(a.y1, b.y1) - max(a.y0, b.y0)
    return float(max(0.0, width) * max(0.0, height))
