"""A report of several ways to call is one of several parts, each with its own baseline."""

from __future__ import annotations

from dataclasses import replace

from ..schema import Report


def parts(report: Report) -> dict[str, Report]:
    """The report by way to call, which is "" where a suite has one."""
    found: dict[str, Report] = {}
    for name, row in report.methods.items():
        part = found.setdefault(row.call, replace(report, methods={}))
        part.methods[name] = row
    return found or {"": report}


def shown(part: Report) -> Report:
    """What figures show: methods that were denied something, and plain again, are for tables."""
    hidden = ("ablation", "again")
    rows = {name: row for name, row in part.methods.items() if row.role not in hidden}
    return replace(part, methods=rows)


def suffix(call: str) -> str:
    """Ends names of files and anchors that there is one of in every part."""
    return f"-{call}" if call else ""
