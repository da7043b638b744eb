"""The speed–quality frontier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from ..schema import MethodResult, Quality, Report
from .figure import DASHED, colors, figure, markers
from .format import fixed, known, significant
from .labels import place_labels
from .svg import MUTED, inline
from .words import calls_saved, first_metric

Pair = tuple[float, float]


def frontier(report: Report) -> str | None:
    """Speed against the suite's first metric, with intervals, and the line of the best."""
    metric = first_metric(report)
    if metric is None:
        return None
    by_calls = not any(known(row.speedup_median) for row in report.methods.values())
    points = _points(report, metric, by_calls)
    if not points:
        return None
    larger = all(quality.larger_is_better for _, quality, _ in points.values())
    tints = colors(report)
    with figure("frontier", 3.7) as (canvas, axes):
        best = _best([(x, q.value) for x, q, _ in points.values()], larger)
        axes.plot(*zip(*best, strict=True), color=MUTED, linewidth=1.1, linestyle=DASHED, zorder=1)
        for name, (x, quality, spread) in points.items():
            axes.errorbar(
                x,
                quality.value,
                xerr=_arms(x, spread),
                yerr=_arms(quality.value, quality.ci95),
                color=tints[name],
                marker=markers(report)[name],
                markersize=8,
                markerfacecolor="none" if report.methods[name].role == "sceptic" else tints[name],
                elinewidth=1.2,
                capsize=2.5,
                linestyle="none",
            )
        axes.margins(0.12)
        if not larger:
            axes.invert_yaxis()
        what = "times fewer target calls than plain" if by_calls else "speed-up over plain, times"
        axes.set_xlabel(what)
        axes.set_ylabel(metric if larger else f"{metric} (less is better)")
        where = {name: (x, quality.value) for name, (x, quality, _) in points.items()}
        place_labels(canvas, axes, where, [*_bars(points), *_pieces(best)], tints)
        told = ", ".join(
            f"{n}: {fixed(x, 2)} times, {significant(y)}" for n, (x, y) in where.items()
        )
        return inline(canvas, "frontier", f"{what} against {metric}. {told}")


def _points(
    report: Report, metric: str, by_calls: bool
) -> dict[str, tuple[float, Quality, Pair | None]]:
    """Speed, quality and the speed's interval of the methods that have both."""
    points = {}
    for name, row in report.methods.items():
        x = calls_saved(report, row) if by_calls else _speed(row)
        quality = row.quality.get(metric)
        if known(x) and quality is not None and known(quality.value):
            points[name] = x, quality, None if by_calls else row.speedup_ci95
    return points


def _speed(row: MethodResult) -> float | None:
    return 1.0 if row.role == "baseline" else row.speedup_median


def _best(points: Sequence[Pair], larger: bool) -> list[Pair]:
    """The points that no other beats in both, the fastest first."""
    up = 1 if larger else -1
    best: list[Pair] = []
    for x, y in sorted(points, key=lambda point: (-point[0], -up * point[1])):
        if not best or up * y > up * best[-1][1]:
            best.append((x, y))
    return best


def _bars(points: Mapping[str, tuple[float, Quality, Pair | None]]) -> list[list[Pair]]:
    """Both ends of every error bar."""
    level = [[(end, q.value) for end in spread] for _, q, spread in points.values() if spread]
    upright = [[(x, end) for end in q.ci95] for x, q, _ in points.values() if q.ci95]
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
