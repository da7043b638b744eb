"""The speed–quality frontiers: by seconds, which are one machine's, and by calls, which are not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..schema import Report
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
    """A row's speed and quality, and their intervals."""

    x: float
    y: float
    x_ci95: Pair | None
    y_ci95: Pair | None


def frontier(report: Report, render: Render = inline) -> str | None:
    """Measured speed-up against the suite's first metric; None where nothing was timed.

    `render` is `svg.inline` or `svg.standalone`.
    """
    if not any(known(row.speedup) for row in report.methods.values()):
        return None
    found = {
        name: (1.0 if row.role == "baseline" else row.speedup, row.speedup_interval)
        for name, row in report.methods.items()
    }
    return _draw(report, "frontier", "speed-up over plain, times", found, render)


def batch_frontier(report: Report, render: Render = inline) -> str | None:
    """The same of the largest batches: who gains alone may gain nothing in company."""
    size = max((size for row in report.methods.values() for size in row.throughput), default=0)
    found: dict[str, tuple[float | None, Pair | None]] = {}
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


def _draw(
    report: Report,
    name: str,
    what: str,
    speeds: Mapping[str, tuple[float | None, Pair | None]],
    render: Render,
) -> str | None:
    """A frontier: points with intervals, a line through each family, plain's level, the best."""
    metric = first_metric(report)
    points, larger = {}, True
    for method, (x, spread) in speeds.items():
        quality = report.methods[method].quality.get(metric or "")
        if known(x) and quality is not None and known(quality.value):
            points[method] = Point(x, quality.value, spread, quality.ci95)
            larger = larger and quality.larger_is_better
    if metric is None or len(points) < 2:
        return None
    drawn = ([name for name in names if name in points] for names in swept(report).values())
    curves = [names for names in drawn if len(names) > 1]
    where = {name: point[:2] for name, point in points.items()}
    best = _best(list(where.values()), larger)
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
        values = {n: knob_text(report.methods[n]) for names in curves for n in names}
        lines = [best, *([where[name] for name in names] for names in curves)]
        bars = [[(end, p.y) for end in p.x_ci95] for p in points.values() if p.x_ci95]
        bars += [[(p.x, end) for end in p.y_ci95] for p in points.values() if p.y_ci95]
        bars += [piece for line in lines for piece in _pieces(line)]
        place_labels(canvas, axes, where, bars, colors(report), values)
        told = ", ".join(
            f"{n}: {fixed(x, 2)} times, {significant(y)}" for n, (x, y) in where.items()
        )
        return render(canvas, name, f"{what} against {metric}. {told}")


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
    axes: Any, report: Report, points: Mapping[str, Point], curves: Sequence[list[str]]
) -> None:
    """Each row's marker with its intervals; those of one family joined, their intervals faint."""
    tints, shapes = colors(report), markers(report)
    joined = {name for names in curves for name in names}
    hollow = {name for name, row in report.methods.items() if row.role in ("sceptic", "oracle")}
    for name, point in points.items():
        axes.errorbar(
            *point[:2],
            xerr=_arms(point.x, point.x_ci95),
            yerr=_arms(point.y, point.y_ci95),
            color=tints[name],
            marker=shapes[name],
            markersize=6 if name in joined else 8,
            markerfacecolor="none" if name in hollow else tints[name],
            elinewidth=0.8 if name in joined else 1.2,
            alpha=None if name not in joined else 0.35,
            capsize=0 if name in joined else 2.5,
            linestyle="none",
        )
    for first, *others in curves:
        row = report.methods[first]
        axes.plot(
            *zip(*(points[name][:2] for name in (first, *others)), strict=True),
            color=tints[first],
            marker=shapes[first],
            markersize=6,
            markerfacecolor="none" if first in hollow else tints[first],
            linewidth=1.4,
            label=f"{row.family or first}: {row.knob}",
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


def _pieces(line: Sequence[Pair], each: int = 24) -> list[list[Pair]]:
    """A line cut so finely that each piece fills its bounding box."""
    cuts = (np.linspace(a, b, each + 1) for a, b in pairwise(line))
    return [list(piece) for cut in cuts for piece in pairwise(cut)]


def _arms(value: float, pair: Pair | None) -> list[list[float]] | None:
    """An interval as matplotlib wants it, never negative: a median may lie on its own bound."""
    return None if pair is None else [[max(0.0, value - pair[0])], [max(0.0, pair[1] - value)]]
