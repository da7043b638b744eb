"""`experts.json`, and the tables and figure that are drawn from it."""

from __future__ import annotations

from mmspec.eval.report.figure import figure, legend
from mmspec.eval.report.svg import SERIES, standalone
from mmspec.eval.report.table import Table

from ..page import benchmark_page
from .measure import ExpertsFound, ExpertsRecord

ABOUT = (
    "Calls of several tokens read the experts that any of them takes, so they cost more than over "
    "dense layers. MoESD tells their number by chance, and from a few calls the cost of the "
    "others. The target efficiency is T(1)/T(n). Models of random weights show what calls cost and "
    "how many experts they touch, and nothing of how trained ones route."
)


def experts_table(record: ExpertsRecord) -> Table:
    """A row a size of call."""
    rows = {}
    for n, call in record.calls.items():
        rows[f"{n}"] = (
            f"{call.experts:.2f}",
            f"{call.expected:.2f}",
            f"{call.relative:.2f}",
            f"{call.predicted:.2f}{' (fitted)' if call.fitted else ''}",
            f"{100 / call.relative:.0f} %",
            f"{100 / call.predicted:.0f} %",
        )
    columns = (
        *("tokens", "experts", "by chance", "T(n)/T(1)", "predicted"),
        *("target efficiency", "predicted"),
    )
    caption = (
        f"{record.model} ({record.weights} weights), {record.chosen} of {record.experts} experts "
        f"in {record.layers} layers: calls of one row, {record.milliseconds:.3g} ms for one token."
    )
    return Table.of(caption, columns, rows)


def experts_markdown(found: ExpertsFound) -> str:
    """The page: what was measured, a table a model, and the figure."""
    *others, last = map(experts_table, found.models)
    about = "\n\n".join([ABOUT, *(table.markdown() for table in others)])
    drawn = "![Time of a call over one token's, measured and predicted](experts.svg)"
    return benchmark_page("What drafts cost sparse experts", about, last, drawn)


def experts_figure(found: ExpertsFound) -> str:
    """Time of a call over that of one token: measured dots, predicted lines."""
    with figure("experts", 2.6) as (canvas, axes):
        for number, record in enumerate(found.models):
            told = record.calls.items()
            measured = [(n, call.relative) for n, call in told]
            predicted = [(n, call.predicted) for n, call in told]
            axes.plot(*zip(*measured, strict=True), "o", color=SERIES[number], label=record.model)
            axes.plot(*zip(*predicted, strict=True), "-", color=SERIES[number])
        axes.set_xlabel("tokens of a call")
        axes.set_ylabel("T(n) / T(1)")
        legend(canvas, axes)
        return standalone(canvas, "experts", "cost of a call by its tokens")
