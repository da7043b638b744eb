"""`objectives.json`, and the table and figure that are drawn from it."""

from __future__ import annotations

from mmspec.eval.report.figure import figure, legend, methods_on_y
from mmspec.eval.report.format import fixed, interval, share
from mmspec.eval.report.svg import SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from ..page import benchmark_page
from .measure import BASELINE, Accepted, ObjectivesRecord

ABOUT = (
    "Drafters of one kind that begin with the same weights and learn from the same answers for as "
    "many steps, each by another loss on laws; then real generations for prompts that training "
    "never asks, chains of drafts at temperature 0 and 1. With a reference, those places alone "
    "count at which the first drafter is ahead the most (AdaSPEC); it has cost a training of its "
    "own, so the rows to compare it with have twice the steps, and as many places at random. A "
    "small model may learn plain text first, by as many steps (FastDraft). Intervals: 95 %, by "
    "resampling the prompts, the same ones for a drafter and the baseline."
)


def objectives_table(record: ObjectivesRecord) -> Table:
    """A row per head: tokens per call, distance from the baseline, acceptance."""
    columns = ["loss", "steps"]
    for kind in ("greedy", "sampled"):
        columns += [f"tokens per call, {kind}", f"against {BASELINE}", "drafts that stand"]
    rows = []
    for name, head in record.heads.items():
        before = f"{head.steps_before} + " if head.steps_before else ""
        own = name == BASELINE
        figures = (*_cells(head.greedy, own), *_cells(head.sampled, own))
        rows.append(Row(name, (Cell(f"{before}{head.steps}"), *figures), "baseline" if own else ""))
    caption = (
        f"Objectives of {record.method} over {record.model}, {record.prompts} held-out prompts."
    )
    return Table(caption, tuple(columns), tuple(rows))


def _cells(found: Accepted, baseline: bool) -> tuple[Cell, ...]:
    told = Cell(fixed(found.tokens_per_call, 2), interval(found.tokens_per_call_ci95, 2))
    gain = (
        Cell() if baseline else Cell(fixed(found.gain, 2, sign=True), interval(found.gain_ci95, 2))
    )
    return told, gain, Cell(share(found.acceptance))


def objectives_markdown(record: ObjectivesRecord) -> str:
    """The page: what was measured, the table and the figure."""
    figure = "![Tokens per call by objective, with intervals](objectives.svg)"
    return benchmark_page("Objectives of draft heads", ABOUT, objectives_table(record), figure)


def objectives_figure(record: ObjectivesRecord) -> str:
    """Tokens per call by head, greedy and at temperature 1."""
    names = [*record.heads]
    with figure("objectives", 0.8 + 0.32 * len(names)) as (canvas, axes):
        for number, kind in enumerate(("greedy", "sampled")):
            found: list[Accepted] = [getattr(head, kind) for head in record.heads.values()]
            places = [place + 0.24 * number - 0.12 for place in range(len(names))]
            color = SERIES[1 + number]
            told = [one.tokens_per_call for one in found]
            axes.plot(told, places, "o", color=color, label=kind)
            for one, place in zip(found, places, strict=True):
                if one.tokens_per_call_ci95 is not None:
                    axes.plot(one.tokens_per_call_ci95, (place, place), color=color, linewidth=1.2)
        methods_on_y(axes, names)
        axes.set_xlabel("tokens per call of the target")
        legend(canvas, axes)
        return standalone(canvas, "objectives", "tokens per call by objective")
