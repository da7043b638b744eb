"""The figures of a report but the frontiers, as inline SVG; None where there is nothing to draw.

Of a method at many values of its knob they show the two ends; the tables have all.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..schema import Report
from .figure import DASHED, colors, figure, legend, markers, methods_on_y, strokes
from .format import significant
from .labels import in_lines
from .parts import ends
from .samples import Samples
from .summary import baseline
from .svg import INK, MUTED, PHASES, inline
from .tables import phase_names

_DOTS = 400  # most dots of a method: more say nothing new and weigh on the page


def acceptance(report: Report) -> str | None:
    """Share of drafted tokens that stood, by position of the draft."""
    series = {n: of for n in ends(report) if (of := report.methods[n].acceptance_by_position)}
    if not series:
        return None
    with figure("acceptance", 3.4) as (canvas, axes):
        for name, shares in series.items():
            places = range(1, len(shares) + 1)
            _line(axes, report, name, list(places), shares, every=max(1, len(shares) // 16))
        axes.set_ylim(0, 1.03)
        axes.set_xlabel("position in the draft")
        axes.set_ylabel("share that stood")
        most = max(map(len, series.values()))
        step = next(step for step in (1, 2, 4, 8, 16, 32) if step * 12 >= most or step == 32)
        axes.set_xticks(sorted({1, *range(step, most + 1, step)}))
        legend(canvas, axes)
        told = "; ".join(f"{n}: first {s[0]:.2f}, last {s[-1]:.2f}" for n, s in series.items())
        return inline(canvas, "acceptance", f"Acceptance by position. {told}")


def latency(report: Report) -> str | None:
    """Mean seconds per sample, a bar per method, split by phase."""
    names = phase_names(report)
    rows = {n: of for n in ends(report) if (of := report.methods[n].phase_seconds)}
    if not rows:
        return None
    with figure("latency", 1.3 + 0.34 * lines_of(rows)) as (canvas, axes):
        left = np.zeros(len(rows))
        for i, phase in enumerate(names):
            widths = np.array([row.get(phase, 0.0) for row in rows.values()])
            color = PHASES[i % len(PHASES)]
            axes.barh(range(len(rows)), widths, 0.62, left=left, color=color, label=phase)
            left += widths
        for place, total in enumerate(left):
            axes.annotate(
                f"{significant(total)} s",
                (total, place),
                (5, 0),
                textcoords="offset points",
                va="center",
                color=INK,
            )
        axes.margins(x=0.13)
        axes.set_xlabel("seconds per sample")
        methods_on_y(axes, list(rows))
        legend(canvas, axes)
        told = "; ".join(f"{n}: {significant(t)} s" for n, t in zip(rows, left, strict=True))
        return inline(canvas, "latency", f"Seconds per sample by phase. {told}")


def throughput(report: Report) -> str | None:
    """Output tokens per second by batch size."""
    rows = {n: of for n in ends(report) if (of := report.methods[n].throughput)}
    if not rows:
        return None
    batches = sorted({batch for many in rows.values() for batch in many})
    with figure("throughput", 3.4) as (canvas, axes):
        for name, many in rows.items():
            sizes = sorted(many)
            _line(axes, report, name, sizes, [many[size].tokens_per_second for size in sizes])
        axes.set_xscale("log", base=2)
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.set_ylim(bottom=0)
        closed = report.settings.get("closed_loop", False)
        axes.set_xlabel("prompts that run at a time" if closed else "batch size")
        axes.set_ylabel("output tokens per second")
        legend(canvas, axes)
        label = f"Tokens per second by batch size, of {', '.join(rows)}"
        return inline(canvas, "throughput", label)


def speedups(report: Report, samples: Samples) -> str | None:
    """The speed-ups of single prompts as dots, a box from quartile to quartile, the median."""
    shown = ends(report)
    ratios = {n: v for n, v in paired_speedups(report, samples).items() if n in shown}
    if not ratios:
        return None
    tints = colors(report)
    with figure("speedups", 1.1 + 0.46 * lines_of(ratios)) as (canvas, axes):
        axes.axvline(1, color=MUTED, linewidth=1.2, linestyle=DASHED)
        for place, (name, values) in enumerate(ratios.items()):
            low, middle, high = np.percentile(values, [25, 50, 75])
            dots = values[:_DOTS]
            # steps of the golden section from -1 to 1: spread out, and the same every time
            steps = np.arange(1, len(dots) + 1) * 0.6180339887498949 % 1
            spread = place + 0.27 * (2 * steps - 1)
            axes.scatter(dots, spread, s=9, color=tints[name], alpha=0.4, linewidths=0)
            box = {"edgecolor": tints[name], "facecolor": "none", "linewidth": 1.4, "zorder": 3}
            axes.barh(place, high - low, 0.56, left=low, **box)
            axes.vlines(middle, place - 0.34, place + 0.34, tints[name], linewidth=2.6, zorder=3)
        axes.set_xlabel("speed-up over plain, prompt by prompt")
        methods_on_y(axes, list(ratios))
        told = "; ".join(f"{n}: median {statistics.median(v):.2f}" for n, v in ratios.items())
        return inline(canvas, "speedups", f"Speed-ups of single prompts. {told}")


def lines_of(names: Iterable[str]) -> float:
    """Lines that methods need on an axis: of a name on several, two have room in one."""
    return sum(max(1.0, 0.5 * (1 + in_lines(name).count("\n"))) for name in names)


def paired_speedups(report: Report, samples: Samples) -> dict[str, list[float]]:
    """Plain's decode seconds a token over the method's, for every sample that both have."""
    plain = samples.speed.get(baseline(report) or "", {})
    found: dict[str, list[float]] = {}
    for name in report.methods:
        mine = samples.speed.get(name, {})
        pairs = [(plain[key], mine[key]) for key in plain if key in mine and mine is not plain]
        ratios = [p.per_token / m.per_token for p, m in pairs if m.decode_seconds > 0]
        if ratios:
            found[name] = ratios
    return found


def _line(
    axes: Any, report: Report, name: str, x: Sequence[float], y: Sequence[float], every: int = 1
) -> None:
    look = {"color": colors(report)[name], "marker": markers(report)[name]}
    axes.plot(x, y, strokes(report)[name], markevery=every, label=name, **look)
