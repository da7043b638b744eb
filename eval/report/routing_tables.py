"""The table of routed blocks: ways to route them where they draft as much."""

from __future__ import annotations

from ..schema import Report
from ..schema_parts import EqualShare
from . import format as f
from .columns import DRAFTED
from .families import knob_text
from .summary import first_metric
from .table import Cell, Row, Table


def equal_shares(report: Report) -> Table | None:
    """A row per method, a column per family of rows that it is compared with."""
    having = {name: row for name, row in report.methods.items() if row.at_equal_share}
    families = list(dict.fromkeys(other for row in having.values() for other in row.at_equal_share))
    if not having:
        return None
    found = [gain for row in having.values() for gain in row.at_equal_share.values()]
    digits = f.decimals(gain.value for gain in found)
    rows = [
        Row(
            name,
            (
                DRAFTED.cell(row),
                *(_gain(report, row.at_equal_share.get(family), digits) for family in families),
            ),
        )
        for name, row in having.items()
    ]
    caption = f"Gain in {first_metric(report)} over other ways to route, at equal drafted shares, "
    caption += "with 95 % intervals; then the rows that these are mixed of."
    columns = ("method", DRAFTED.heading, *(f"against {family}" for family in families))
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
