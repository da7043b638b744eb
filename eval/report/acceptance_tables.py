"""The tables of a report that tell how many drafted tokens stood."""

from __future__ import annotations

from ..schema import Report
from . import format as f
from .table import Cell, Table
from .tables import labelled

# lengths that are told together, of drafts that may be hundreds of tokens long
LENGTHS = (
    *((n, n) for n in range(5)),
    *((5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 100_000)),
)


def acceptance(report: Report) -> Table | None:
    """Acceptance at some positions of the draft; the first ones and ever fewer later."""
    drafting = {n: r.acceptance_by_position for n, r in report.methods.items()}
    most = max(map(len, drafting.values()), default=0)
    positions = [p for p in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256) if p <= most]
    if not positions:
        return None
    rows = [
        labelled(
            report, name, [Cell(f.fixed(s[p - 1] if p <= len(s) else None, 2)) for p in positions]
        )
        for name, s in drafting.items()
        if s
    ]
    columns = ("position", *map(str, positions))
    return Table("Share of drafted tokens that stood, by position.", columns, tuple(rows))


def accepted(report: Report) -> Table | None:
    """How many drafted tokens stood at a time: shares of all drafts."""
    known = {n: r.accepted_lengths for n, r in report.methods.items() if r.accepted_lengths}
    most = max(map(len, known.values()), default=0) - 1
    if most < 0:
        return None
    bins = [(low, high) for low, high in LENGTHS if low <= most]

    def cells(shares: list[float]) -> tuple[Cell, ...]:
        return tuple(
            Cell(f.share(sum(shares[low : high + 1])) if low < len(shares) else f.MISSING)
            for low, high in bins
        )

    names = [str(low) if low == high else f"{low}–{min(high, most)}" for low, high in bins]
    rows = tuple(labelled(report, name, list(cells(shares))) for name, shares in known.items())
    caption = "Share of the drafts of which so many tokens stood."
    return Table(caption, ("tokens that stood", *names), rows)
