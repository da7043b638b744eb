"""`lengths.json`, and the tables and the figure that are drawn from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmspec.eval.report.figure import MARKERS, figure, legend
from mmspec.eval.report.format import fixed
from mmspec.eval.report.svg import SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from ..page import benchmark_page
from .play import Compared
from .rounds import RoundCost

ABOUT = (
    "Simulated: how often drafts stand was recorded along outputs, coins say which do, and rounds "
    "take what a table of costs says. Goodput (tokens a second) over plain decoding's, and regret: "
    "how much longer it takes than the best fixed length in hindsight, which nobody knows "
    "beforehand. goodput, speckv and faser are told the costs; auto learns them, and its first "
    "calls count."
)


@dataclass
class LengthsRecord:
    """Comparison of length policies.

    Attributes:
        texts: outputs whose acceptances were recorded.
        calls: of every policy and batch size.
        noise: of a round's seconds.
        stands: mean chance that a draft of a token stands.
        costs, found: by the name of a table of costs.
    """

    texts: int
    calls: int
    noise: float
    stands: float
    costs: dict[str, RoundCost]
    found: dict[str, Compared]


def lengths_tables(record: LengthsRecord) -> list[Table]:
    """A table for each table of costs: a row per policy, a column per batch size."""
    tables = []
    for name, found in record.found.items():
        rows = [
            Row(policy, tuple(_cell(by[n], found.regrets[policy][n]) for n in by))
            for policy, by in found.speedups.items()
        ]
        sizes = [f"batch {n}" for n in found.speedups["plain"]]
        caption = f"Goodput over plain decoding, and regret, by costs {name!r} (simulated)."
        tables.append(Table(caption, ("length", *sizes), tuple(rows)))
    return tables


def _cell(speedup: float, regret: float) -> Cell:
    return Cell(fixed(speedup, 2, unit="×"), "", (f"{100 * regret:+.1f} %",))


def lengths_markdown(record: LengthsRecord) -> str:
    """The page: what was compared, the tables and the figure."""
    first, *others = lengths_tables(record)
    costs = [
        f"Costs {name!r}: a round takes {c.fixed:.3g} + {c.token:.3g} · rows · (1 + γ) + γ · "
        f"({c.call:.3g} + {c.row:.3g} · rows)"
        for name, c in record.costs.items()
    ]
    picture = "![Goodput over plain decoding by batch size](lengths.svg)"
    behind = "\n\n".join([*(table.markdown() for table in others), picture])
    return benchmark_page("Draft lengths compared", ABOUT, first, behind, costs)


def lengths_figure(record: LengthsRecord) -> str:
    """Goodput over plain decoding by batch size, of the last table of costs."""
    name, found = [*record.found.items()][-1]
    with figure("lengths", 4.0) as (canvas, axes):
        for i, (policy, by) in enumerate(found.speedups.items()):
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "label": policy}
            axes.plot([*by], [*by.values()], marker=MARKERS[i % len(MARKERS)], **look)
        axes.set_xscale("log", base=2)
        axes.set_xlabel(f"rows of a batch (costs {name!r})")
        axes.set_ylabel("goodput over plain decoding")
        legend(canvas, axes)
        return standalone(canvas, "lengths", "goodput over plain decoding by batch size")
