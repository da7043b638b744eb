"""The speed–quality frontiers: by seconds, which are one machine's, and by calls, which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..schema import MethodResult, Report
from ..schema_parts import Quality
from .figure import DASHED, colors, figure, legend, markers
from .format import fixed, known, significant
from .labels import place_labels
from .parts import knob_text, swept
from .summary import baseline, calls_saved, counted, first_metric
from .svg import GRID, MUTED, inline

Pair = tuple[float, float]
Render = Callable[[Any, str, str], str]  # a figure, its name and what it shows, to SVG
FEW = 10  # points that a small figure has room for


class Point(NamedTuple):
    """A row: how fast it is, its quality, and the speed's interval."""

    x: float
    quality: Quality
    spread: Pair | None

    @property
    def at(self) -> Pair:
        """Place in the figure."""
        return self.x, self.quality.value


def frontier(report: Report, render: Render = inline) -> str | None:
    """Measured speed-up against the suite's first metric; None where nothing was timed.

    `render` is `svg.inline` or `svg.standalone`.
    """
    if not any(known(row.speedup) for row in report.methods.values()):
        return None
    found = {name: (_speed(row), row.speedup_interval) for name, row in report.methods.items()}
    return _draw(report, "frontier", "speed-up over plain, times", found, render)


def batch_frontier(report: Report, render: Render = inline) -> str | None:
    """The same of the largest batches: who gains alone may gain nothing in company."""
    size = max((size for row in report.methods.values() for size in row.throughput), default=0)
    found: dict[str, tuple[float | None, Pair | None]] = dict.fromkeys(report.methods, (None, None))
    for name, row in report.methods.items():
        if size in row.throughput:
            many = row.throughput[size]
            alone = 1.0 if row.role == "baseline" else None
            found[name] = many.speedup_median or alone, many.speedup_ci95
    what = f"speed-up over plain in batches of {size}, times"
    return _draw(report, "batch", what, found, render)


def calls_frontier(report: Report, render: Render = inline) -> str | None:
    """The same with calls in place of seconds, since they carry over to other machines.

    Calls are the target's, and those of a sibling where one draws a small picture first.
    """
    rows = report.methods
    found = {name: (calls_saved(report, row, sibling=True), None) for name, row in rows.items()}
    what = "calls of the target's head in sequence" if counted(report) else "target calls"
    if any(known(row.sibling_calls_per_sample) for row in rows.values()):
        what = "calls of target and sibling"
    return _draw(report, "calls", f"times fewer {what} than plain", found, render)


def _speed(row: MethodResult) -> float | None:
    return 1.0 if row.role == "baseline" else row.speedup


def _draw(
    report: Report,
    name: str,
    what: str,
    speeds: Mapping[str, tuple[float | None, Pair | None]],
    render: Render,
) -> str | None:
    """A frontier: points with intervals, a line through each family, plain's level, the best."""
    metric = first_metric(report)
    points = {} if metric is None else _points(report, metric, speeds)
    if metric is None or len(points) < 2:
        return None
    larger = all(point.quality.larger_is_better for point in points.values())
    curves, best = _curves(report, points), _best([p.at for p in points.values()], larger)
    with figure(name, 3.7 if len(points) <= FEW else 5.4) as (canvas, axes):
        _plain_level(axes, report, metric, larger)
        axes.plot(*zip(*best, strict=True), color=MUTED, linewidth=1.1, linestyle=DASHED, zorder=1)
        _markers(axes, report, points, curves)
        if curves:
            _ratios_on_x(axes, [point.x for point in points.values()])
        axes.margins(0.12 if len(points) <= FEW else 0.06)
        if not larger:
            axes.invert_yaxis()
        axes.set_xlabel(what)
        axes.set_ylabel(metric if larger else f"{metric} (less is better)")
        if axes.get_legend_handles_labels()[0]:
            legend(canvas, axes)
        where = {name: point.at for name, point in points.items()}
        values = {n: knob_text(report.methods[n]) for names in curves.values() for n in names}
        lines = [piece for line in (best, *_lines(points, curves)) for piece in _pieces(line)]
        bars = [*_bars(points), *lines]
        place_labels(canvas, axes, where, bars, colors(report), values)
        told = ", ".join(
            f"{n}: {fixed(x, 2)} times, {significant(y)}" for n, (x, y) in where.items()
        )
        return render(canvas, name, f"{what} against {metric}. {told}")


def _points(
    report: Report, metric: str, speeds: Mapping[str, tuple[float | None, Pair | None]]
) -> dict[str, Point]:
    """The rows that have both a speed and a quality."""
    points = {}
    for name, row in report.methods.items():
        x, spread = speeds[name]
        quality = row.quality.get(metric)
        if known(x) and quality is not None and known(quality.value):
            points[name] = Point(x, quality, spread)
    return points


def _curves(report: Report, points: Mapping[str, Point]) -> dict[str, list[str]]:
    """The points to be joined, by family, in the order of the knob."""
    drawn = {f: [name for name in names if name in points] for f, names in swept(report).items()}
    return {family: names for family, names in drawn.items() if len(names) > 1}


def _lines(points: Mapping[str, Point], curves: Mapping[str, list[str]]) -> list[list[Pair]]:
    return [[points[name].at for name in names] for names in curves.values()]


def _plain_level(axes: Any, report: Report, metric: str, larger: bool) -> None:
    """Plain's quality across the figure, and how far below it is still called not worse."""
    plain, margin = baseline(report), report.settings.get("margin")
    quality = None if plain is None else report.methods[plain].quality.get(metric)
    if quality is None or not known(quality.value):
        return
    axes.axhline(quality.value, color=MUTED, linewidth=0.9, zorder=0.9)
    if margin is not None:
        floor = quality.value - (margin if larger else -margin)
        label = f"{plain} to {plain} {'−' if larger else '+'} {margin:g}"
        axes.axhspan(floor, quality.value, color=GRID, linewidth=0, zorder=0.5, label=label)


def _markers(
    axes: Any, report: Report, points: Mapping[str, Point], curves: Mapping[str, list[str]]
) -> None:
    """Each row's marker with its intervals; those of one family joined, their intervals faint."""
    tints, shapes = colors(report), markers(report)
    joined = {name for names in curves.values() for name in names}
    hollow = {name for name, row in report.methods.items() if row.role == "sceptic"}
    for name, point in points.items():
        axes.errorbar(
            *point.at,
            xerr=_arms(point.x, point.spread),
            yerr=_arms(point.quality.value, point.quality.ci95),
            color=tints[name],
            marker=shapes[name],
            markersize=6 if name in joined else 8,
            markerfacecolor="none" if name in hollow else tints[name],
            elinewidth=0.8 if name in joined else 1.2,
            alpha=None if name not in joined else 0.35,
            capsize=0 if name in joined else 2.5,
            linestyle="none",
        )
    for (family, names), line in zip(curves.items(), _lines(points, curves), strict=True):
        first = names[0]
        label = f"{family}: {report.methods[first].knob}"
        axes.plot(
            *zip(*line, strict=True),
            color=tints[first],
            marker=shapes[first],
            markersize=6,
            markerfacecolor="none" if first in hollow else tints[first],
            linewidth=1.4,
            label=label,
        )


def _ratios_on_x(axes: Any, values: Sequence[float]) -> None:
    """Equal ratios are equally far apart: settings crowd where little is gained."""
    steps = (1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8)
    ticks = [10.0**power * step for power in range(-2, 4) for step in steps]
    shown = [x for x in ticks if min(values) / 1.05 <= x <= max(values) * 1.05]
    axes.set_xscale("log")
    axes.set_xticks(shown, [f"{x:g}" for x in shown])
    axes.minorticks_off()


def _best(points: Sequence[Pair], larger: bool) -> list[Pair]:
    """The points that no other beats in both, the fastest first."""
    up = 1 if larger else -1
    best: list[Pair] = []
    for x, y in sorted(points, key=lambda point: (-point[0], -up * point[1])):
        if not best or up * y > up * best[-1][1]:
            best.append((x, y))
    return best


def _bars(points: Mapping[str, Point]) -> list[list[Pair]]:
    """Both ends of every error bar."""
    level = [[(end, p.quality.value) for end in p.spread] for p in points.values() if p.spread]
    upright = [[(p.x, end) for end in p.quality.ci95] for p in points.values() if p.quality.ci95]
    return level + upright


def _pieces(line: Sequence[Pair], each: int = 24) -> list[list[Pair]]:
    """A line cut so finely that each piece fills its bounding box."""
    ends = []
    for a, b in pairwise(line):
        ends += [list(piece) for piece in pairwise(np.linspace(a, b, each + 1))]
    return ends


def _arms(value: float, pair: Pair | None) -> list[list[float]] | None:
    """An interval as matplotlib wants it, never negative: a median may lie on its own bound."""
    return None if pair is None else [[max(0.0, value - pair[0])], [max(0.0, pair[1] - value)]]
