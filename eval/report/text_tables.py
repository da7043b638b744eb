"""The tables of rows that answer with text: what drafters see, compressors choose, models cost."""

from __future__ import annotations

from ..schema import Report
from . import format as f
from .columns import TOKENS_PER_CALL
from .summary import MARKS
from .table import Cell, Row, Table

_OVER = {"blank": "over itself shown grey", "prompt-lookup": "over prompt-lookup"}


def text_tables(report: Report) -> list[Table]:
    """Those that have rows."""
    return [t for t in (_lengths(report), _choices(report), _members(report)) if t.rows]


def _lengths(report: Report) -> Table:
    """Mean acceptance lengths over those of other rows."""
    having = {n: row for n, row in report.methods.items() if row.acceptance_ratios}
    others = [name for name in _OVER if any(name in r.acceptance_ratios for r in having.values())]
    rows = []
    for name, row in having.items():
        found = [row.acceptance_ratios.get(other) for other in others]
        cells = [
            Cell() if r is None else Cell(f.fixed(r.value, 2, unit="×"), f.interval(r.ci95, 2))
            for r in found
        ]
        rows.append(Row(name, (TOKENS_PER_CALL.cell(row), *cells), MARKS.get(row.role, "")))
    columns = ("method", TOKENS_PER_CALL.heading, *(_OVER[other] for other in others))
    return Table("Mean acceptance length, and over that of other rows.", columns, tuple(rows))


def _choices(report: Report) -> Table:
    """What a compressor chose by the question, and what that cost."""
    rows = [
        Row(
            f"{name}: {branch}",
            (
                Cell(f"{choice.n:,}"),
                Cell(f.fixed(choice.visual, 1)),
                Cell(f.fixed(choice.kept, 1)),
                Cell(f.significant(choice.seconds * 1e3)),
            ),
        )
        for name, row in report.methods.items()
        for branch, choice in row.choices.items()
    ]
    columns = ("branch", "questions", "visual tokens", "kept", "milliseconds")
    return Table("What the elastic compressor chose, per question.", columns, tuple(rows))


def _members(report: Report) -> Table:
    """What each model of a row took for a question."""
    rows = [
        Row(
            f"{name}: {who}",
            (
                Cell(f.fixed(member.calls, 1)),
                Cell(f.fixed(member.tokens, 1)),
                Cell(f.significant(member.seconds)),
            ),
        )
        for name, row in report.methods.items()
        for who, member in row.members.items()
    ]
    columns = ("model", "calls", "tokens", "seconds")
    return Table("What every model was asked for, per question.", columns, tuple(rows))
