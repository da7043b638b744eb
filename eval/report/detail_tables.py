"""The tables that only some reports have: accepted drafts, routed blocks, what answers took."""

from __future__ import annotations

from ..schema import Report
from ..schema_parts import Category, EqualShare
from . import format as f
from .columns import DRAFTED, REUSED, TOKENS_PER_CALL
from .parts import knob_text
from .summary import first_metric
from .table import Cell, Row, Table
from .tables import labelled

# numbers of tokens that are told together, of drafts that may be hundreds of tokens long
LENGTHS = (
    *((n, n) for n in range(5)),
    *((5, 8), (9, 16), (17, 32), (33, 64), (65, 128), (129, 100_000)),
)
POSITIONS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 128, 256)
_OVER = {"blank": "over itself shown grey", "prompt-lookup": "over prompt-lookup"}


def acceptance(report: Report) -> Table | None:
    """Acceptance at some positions of the draft; the first ones and ever fewer later."""
    drafting = {n: s for n, r in report.methods.items() if (s := r.acceptance_by_position)}
    most = max(map(len, drafting.values()), default=0)
    shown = [p for p in POSITIONS if p <= most]
    rows = [
        labelled(report, n, [Cell(f.fixed(s[p - 1] if p <= len(s) else None, 2)) for p in shown])
        for n, s in drafting.items()
    ]
    caption = "Share of drafted tokens that stood, by position."
    return Table(caption, ("position", *map(str, shown)), tuple(rows)) if shown else None


def accepted(report: Report) -> Table | None:
    """Lengths of accepted drafts, as shares of all drafts."""
    known = {n: r.accepted_lengths for n, r in report.methods.items() if r.accepted_lengths}
    if not known:
        return None
    most = max(map(len, known.values())) - 1
    bins = [(low, high) for low, high in LENGTHS if low <= most]
    names = [str(low) if low == high else f"{low}–{min(high, most)}" for low, high in bins]
    rows = []
    for name, shares in known.items():
        told = (sum(shares[low : high + 1]) if low < len(shares) else None for low, high in bins)
        rows.append(labelled(report, name, [Cell(f.share(one)) for one in told]))
    caption = "Share of the drafts of which so many tokens stood."
    return Table(caption, ("tokens that stood", *names), tuple(rows))


def equal_shares(report: Report) -> Table | None:
    """Ways to save where they draft, or reuse, as much: a row a method, a column a rival."""
    having = {name: row for name, row in report.methods.items() if row.at_equal_share}
    if not having:
        return None
    families = list(dict.fromkeys(other for row in having.values() for other in row.at_equal_share))
    found = [gain for row in having.values() for gain in row.at_equal_share.values()]
    digits = f.decimals(gain.value for gain in found)
    reuse = any(row.reused_share is not None for row in having.values())
    shares, rows = (DRAFTED, REUSED) if reuse else (DRAFTED,), []
    for name, row in having.items():
        gains = (_gain(report, row.at_equal_share.get(family), digits) for family in families)
        rows.append(Row(name, (*(share.cell(row) for share in shares), *gains)))
    what = "save, at equal drafted or reused" if reuse else "route, at equal drafted"
    caption = f"Gain in {first_metric(report)} over other ways to {what} shares, "
    caption += "with 95 % intervals; then the rows that these are mixed of."
    told = (f"against {family}" for family in families)
    columns = ("method", *(share.heading for share in shares), *told)
    return Table(caption, columns, tuple(rows))


def _gain(report: Report, found: EqualShare | None, digits: int) -> Cell:
    if found is None:
        return Cell()
    low, high = (knob_text(report.methods[name]) or name for name in found.rows)
    mixed = f"{low} ({f.share(1 - found.weight)}) and {high} ({f.share(found.weight)})"
    if found.against is not None:
        most = knob_text(report.methods[found.against]) or found.against
        mixed = f"itself mixed: {mixed}, against {most}"
    return Cell(f.fixed(found.value, digits, sign=True), f.interval(found.ci95, digits), (mixed,))


def by_class(report: Report, field: str, named: str) -> Table:
    """Speed-up, tokens a call and tokens a second by class of prompts: a row per method.

    Args:
        field: of the rows, such as "categories".
        named: the classes, for the caption.
    """
    having = {name: found for name, row in report.methods.items() if (found := getattr(row, field))}
    tags = list(dict.fromkeys(tag for found in having.values() for tag in found))
    rows = []
    for name, own in having.items():
        cells = []
        for found in (own[tag] for tag in tags):
            spread = f.interval(found.mean_acceptance_length_ci95, 2)
            tokens = Cell(f.fixed(found.mean_acceptance_length, 2), spread).line()
            told = f"{tokens} tokens a call", f"{f.significant(found.tokens_per_second)} a second"
            speed = f.fixed(found.speedup_median, 2, unit="×")
            cells.append(Cell(speed, f.interval(found.speedup_ci95, 2), told))
        rows.append(labelled(report, name, cells))
    counts = {tag: found.n for own in having.values() for tag, found in own.items()}
    headings = (f"{tag} ({counts[tag]})" for tag in tags)
    caption = f"By {named}, with its prompts: speed-up over plain, tokens per call, and per second."
    return Table(caption, ("method", *headings), tuple(rows))


def by_position(report: Report) -> Table | None:
    """Acceptance at some positions of the draft by category: a row per method and category."""
    drafting = [
        (f"{name}: {tag}", found)
        for name, row in report.methods.items()
        for tag, found in row.categories.items()
        if found.acceptance_by_position
    ]
    most = max((len(found.acceptance_by_position) for _, found in drafting), default=0)
    shown = [place for place in POSITIONS if place <= most]
    rows = tuple(
        Row(name, tuple(_accepted_at(found, place - 1) for place in shown))
        for name, found in drafting
    )
    caption = "Share of drafted tokens that stood, given those before them did, by category and "
    caption += "position."
    return Table(caption, ("position", *map(str, shown)), rows) if shown else None


def _accepted_at(found: Category, place: int) -> Cell:
    shares, spreads = found.acceptance_by_position, found.acceptance_by_position_ci95
    if place >= len(shares):
        return Cell()
    spread = spreads[place] if place < len(spreads) else None
    return Cell(f.fixed(shares[place], 2), f.interval(spread, 2))


def text_tables(report: Report) -> list[Table]:
    """Tables of answers: what drafters see, compressors choose, and models cost."""
    having = {n: row for n, row in report.methods.items() if row.acceptance_ratios}
    others = [name for name in _OVER if any(name in r.acceptance_ratios for r in having.values())]
    ratios = []
    for name, row in having.items():
        found = [row.acceptance_ratios.get(other) for other in others]
        cells = [
            Cell() if r is None else Cell(f.fixed(r.value, 2, unit="×"), f.interval(r.ci95, 2))
            for r in found
        ]
        ratios.append(labelled(report, name, [TOKENS_PER_CALL.cell(row), *cells]))
    choices = {
        f"{name}: {branch}": (
            *(f"{choice.n:,}", f.fixed(choice.visual, 1), f.fixed(choice.kept, 1)),
            f.significant(choice.seconds * 1e3),
        )
        for name, row in report.methods.items()
        for branch, choice in row.choices.items()
    }
    members = {
        f"{name}: {who}": (
            *(f.fixed(member.calls, 1), f.fixed(member.tokens, 1)),
            f.significant(member.seconds),
        )
        for name, row in report.methods.items()
        for who, member in row.members.items()
    }
    tables = [
        by_class(report, "categories", "category"),
        by_position(report),
        by_class(report, "input_lengths", "length of the prompt"),
        Table(
            "Mean acceptance length, and over that of other rows.",
            ("method", TOKENS_PER_CALL.heading, *(_OVER[other] for other in others)),
            tuple(ratios),
        ),
        Table.of(
            "What the elastic compressor chose, per question.",
            ("branch", "questions", "visual tokens", "kept", "milliseconds"),
            choices,
        ),
        Table.of(
            "What every model was asked for, per question.",
            ("model", "calls", "tokens", "seconds"),
            members,
        ),
    ]
    return [table for table in tables if table is not None and table.rows]
