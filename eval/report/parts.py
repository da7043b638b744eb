"""A report in parts: by way to call, each with its own baseline, and by family of rows."""

from __future__ import annotations

from dataclasses import replace

from ..schema import MethodResult, Report
from .format import known


def parts(report: Report) -> dict[str, Report]:
    """The report by way to call, which is "" where a suite has one."""
    found: dict[str, Report] = {}
    for name, row in report.methods.items():
        part = found.setdefault(row.call, replace(report, methods={}))
        part.methods[name] = row
    return found or {"": report}


def shown(part: Report) -> Report:
    """Rows for figures; methods that were denied something, and plain again, are for tables."""
    hidden = ("ablation", "again")
    rows = {name: row for name, row in part.methods.items() if row.role not in hidden}
    return replace(part, methods=rows)


def suffix(call: str) -> str:
    """Ends names of files and anchors that there is one of in every part."""
    return f"-{call}" if call else ""


def families(report: Report) -> dict[str, list[str]]:
    """Names of rows that differ in the knob alone, by family, in its order: up or down."""
    found: dict[str, list[str]] = {}
    for name, row in report.methods.items():
        found.setdefault(row.family or name, []).append(name)
    for names in found.values():
        first, last = (_value(report.methods[name]) for name in (names[0], names[-1]))
        names.sort(key=lambda name: _value(report.methods[name]), reverse=first > last)
    return found


def swept(report: Report) -> dict[str, list[str]]:
    """The families of which there is more than one value of the knob."""
    return {
        family: names
        for family, names in families(report).items()
        if len({report.methods[name].knob_value for name in names}) > 1
    }


def ends(report: Report) -> list[str]:
    """The rows, of a family with many only the first and the last: where all would be too many."""
    inner = {name for names in families(report).values() for name in names[1:-1]}
    return [name for name in report.methods if name not in inner]


def knob_text(row: MethodResult) -> str:
    """The value of a row's knob."""
    return f"{row.knob_value:g}" if known(row.knob_value) else ""


def _value(row: MethodResult) -> float:
    return row.knob_value if known(row.knob_value) else 0.0
