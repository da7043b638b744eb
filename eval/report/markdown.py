"""`report.md`: the tables and what they mean."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from ..schema import Report
from . import tables
from .acceptance_tables import acceptance, accepted
from .definitions import definitions
from .parts import parts
from .routing_tables import equal_shares
from .summary import lede, title, warnings, what_ran
from .table import Table, escape
from .text_tables import text_tables


def to_markdown(
    report: Report, figures: Sequence[str] = (), samples: Mapping[str, str] | None = None
) -> str:
    """The report as Markdown; text of the user's is shown as it is.

    Args:
        figures: files beside it: speed against quality.
        samples: files and folders beside it that hold the samples, by what they are.
    """
    return "\n\n".join(_blocks(report, figures, samples or {})) + "\n"


def _blocks(report: Report, figures: Sequence[str], samples: Mapping[str, str]) -> Iterator[str]:
    yield f"# {escape(title(report))}"
    yield "; ".join(f"{name}: {escape(text)}" for name, text in what_ran(report))
    if said := warnings(report):
        yield "\n".join(
            f"> **{escape(said[0])}**" if i == 0 else f"> - {escape(line)}"
            for i, line in enumerate(said)
        )
    of_calls = parts(report)
    for call, part in of_calls.items():
        if call:
            yield f"## Methods, {escape(call)}"
        yield escape(lede(part))
        yield tables.headline(part).markdown()
    for name in figures:
        yield f"![Speed against quality]({name})"
    sections: list[tuple[str, list[Table | None]]] = [
        ("Further figures", [tables.further(report), *text_tables(report)]),
        ("At equal drafted shares", [equal_shares(part) for part in of_calls.values()]),
        ("Speed against quality", [tables.sweeps(part) for part in of_calls.values()]),
        ("Acceptance", [acceptance(report), accepted(report)]),
        ("Latency", [tables.phases(report), tables.costs(report)]),
        ("Throughput", [tables.throughput(report)]),
        ("Quality by task", [*tables.tasks(report)]),
        ("Settings", [tables.facts("Settings.", report.settings)]),
        ("Environment", [tables.facts("Environment.", report.environment)]),
    ]
    for name, of in sections:
        shown = [table for table in of if table is not None and table.rows]
        if shown:
            yield f"## {name}"
            yield from (table.markdown() for table in shown)
    if samples:
        yield "## Samples"
        yield "\n".join(f"- [{escape(what)}](<{path}>)" for what, path in samples.items())
    yield "## Command"
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", report.command)), default=0))
    yield f"{fence}sh\n{report.command}\n{fence}"
    yield "## How to read this"
    yield "\n".join(f"- **{name}.** {text}" for name, text in definitions(report).items())
