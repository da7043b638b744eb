"""Style of figures: their size, the look of each method, legends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ..schema import Report
from .labels import in_lines
from .parts import families
from .summary import baseline
from .svg import INK, SERIES, style

DASHED = (0, (4, 3))
MARKERS = "osD^v<>ph"

_WIDTH = 5.8  # inches of 72 units; text has 10


def colors(report: Report) -> dict[str, str]:
    """The colour of each method: grey for the baseline, the other families in turn."""
    plain = baseline(report)
    others = [names for names in families(report).values() if plain not in names]
    found = {
        name: SERIES[1 + i % (len(SERIES) - 1)] for i, names in enumerate(others) for name in names
    }
    return {name: found.get(name, SERIES[0]) for name in report.methods}


def markers(report: Report) -> dict[str, str]:
    """The marker of each family, the same in all figures."""
    of = enumerate(families(report).values())
    return {name: MARKERS[i % len(MARKERS)] for i, names in of for name in names}


def strokes(report: Report) -> dict[str, str]:
    """Line style of each method: solid at a family's safe end, dashed at its fast end."""
    first = {names[0] for names in families(report).values()}
    return {name: "-" if name in first else "--" for name in report.methods}


@contextmanager
def figure(name: str, height: float) -> Iterator[tuple[Any, Any]]:
    """A canvas `height` inches high and its axes; to be drawn in here, and made inline too."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with style(name):
        canvas = Figure(figsize=(_WIDTH, height), layout="constrained")
        FigureCanvasAgg(canvas)  # measures text
        yield canvas, canvas.add_subplot()


def legend(canvas: Any, axes: Any) -> None:
    """Above the axes, which keep their height; to be read line by line, not column by column."""
    handles, names = axes.get_legend_handles_labels()
    columns = max(1, min(len(names), int(_WIDTH * 72 / (40 + 6.2 * max(map(len, names))))))
    canvas.set_figheight(canvas.get_figheight() + 0.21 * ((len(names) - 1) // columns))
    order = [i for column in range(columns) for i in range(column, len(names), columns)]
    canvas.legend(
        [handles[i] for i in order],
        [names[i] for i in order],
        loc="outside upper left",
        ncols=columns,
        handlelength=2,
        columnspacing=1.3,
    )


def methods_on_y(axes: Any, names: list[str]) -> None:
    """A line per method, the first on top."""
    axes.set_yticks(range(len(names)), [in_lines(name) for name in names], color=INK)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
