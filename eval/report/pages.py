"""The pages of a finished run: `report.md`, and `report.html`, which needs no other file."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import write_atomic
from ..contact_sheet import COLOURS
from ..schema import Report
from . import plots, tables
from .columns import COSTS, FURTHER, PROMISED
from .detail_tables import acceptance, accepted, equal_shares, text_tables
from .figure import colors
from .frontier import batch_frontier, calls_frontier, frontier
from .gallery import gallery
from .parts import parts, shown, suffix
from .samples import Samples, read_samples, sample_files
from .summary import lede, title, warnings, what_ran
from .svg import VARIABLES, apart, standalone
from .table import escape
from .wording import wording, words

FRONTIERS = {"frontier": frontier, "batch": batch_frontier, "calls": calls_frontier}


def write_reports(folder: Path) -> list[Path]:
    """Draw both reports of a finished run, and the frontiers; all are made before one is written.

    Raises:
        InputError: no such folder, no report of this version in it, or a line of its
            `samples.jsonl` that is not a sample.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}; name the one that `mmspec eval run -o` wrote")
    report = Report.read(folder)
    figures = {
        f"{name}{suffix(call)}.svg": draw(shown(part), standalone)
        for call, part in parts(report).items()
        for name, draw in FRONTIERS.items()
    }
    drawn = {name: text for name, text in figures.items() if text is not None}
    texts = {
        "report.md": to_markdown(report, tuple(drawn), sample_files(report, folder)),
        "report.html": to_html(report, folder),
        **drawn,
    }
    return [write_atomic(folder / name, text) for name, text in texts.items()]


def to_markdown(
    report: Report, figures: Sequence[str] = (), samples: Mapping[str, str] | None = None
) -> str:
    """The report as Markdown; text of the user's is shown as it is.

    Args:
        figures: files beside it: speed against quality.
        samples: files and folders beside it that hold the samples, by what they are.
    """
    return _page(
        "page.md.j2",
        report,
        [_part(call, part) for call, part in parts(report).items()],
        figures=figures,
        files=samples or {},
        further=[tables.further(report), *text_tables(report)],
        acceptance=[acceptance(report), accepted(report)],
        latency=[tables.phases(report), tables.costs(report)],
        throughput=[tables.throughput(report)],
        settings=tables.facts("Settings.", report.settings),
        environment=tables.facts("Environment.", report.environment),
        fence="`" * max(3, 1 + max(map(len, re.findall("`+", report.command)), default=0)),
    )


def to_html(report: Report, folder: Path) -> str:
    """The report as one page without scripts.

    Args:
        folder: of the run: its `samples.jsonl` and pictures, as far as they are there.

    Raises:
        InputError: a line of `samples.jsonl` is not a sample.
    """
    samples = read_samples(folder)
    of_calls = parts(report)
    return _page(
        "page.html.j2",
        report,
        [_part(call, part) | _drawn(call, part, samples) for call, part in of_calls.items()],
        settings=tables.facts("Settings", report.settings),
        environment=tables.facts("Environment", report.environment),
        gallery=gallery(report, samples, folder),
        sheets=COLOURS if wording(report).sheets else None,
        files=sample_files(report, folder),
        swatches={
            name: VARIABLES[color]
            for part in of_calls.values()
            for name, color in colors(part).items()
        },
    )


def _page(template: str, report: Report, told: Sequence[Mapping[str, Any]], **more: Any) -> str:
    """A template filled in with what both pages say, and with more."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=".html" in template,  # prompts, names and notes come from users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["md"] = escape
    page = environment.get_template(template).render(
        title=title(report),
        ran=what_ran(report),
        warnings=warnings(report),
        parts=told,
        tasks=tables.tasks(report),
        command=report.command,
        definitions=definitions(report),
        **more,
    )
    return page.strip() + "\n"


def _part(call: str, part: Report) -> dict[str, Any]:
    """Content of both pages for one way to call."""
    return {
        "call": call,
        "lede": lede(part),
        "headline": tables.headline(part),
        "equal_shares": equal_shares(part),
        "sweeps": tables.sweeps(part),
    }


def _drawn(call: str, part: Report, samples: Samples) -> dict[str, Any]:
    """The figures of one way to call, and the tables beside them."""
    from markupsafe import Markup

    drawn = shown(part)
    figures = {name: draw(drawn) for name, draw in FRONTIERS.items()} | {
        "acceptance": plots.acceptance(drawn),
        "latency": plots.latency(drawn),
        "throughput": plots.throughput(drawn),
        "speedups": plots.speedups(drawn, samples),
    }
    return {
        "mark": suffix(call),
        "further": [t for t in (tables.further(part), *text_tables(part)) if t is not None],
        "acceptance": acceptance(part),
        "accepted": accepted(part),
        "phases": tables.phases(part),
        "costs": tables.costs(part),
        "throughput": tables.throughput(part),
        "figures": {
            name: Markup(apart(svg, call) if svg and call else svg or "")
            for name, svg in figures.items()
        },
    }


def definitions(report: Report) -> dict[str, str]:
    """Definitions of a report's words, by term."""
    rows, said, own = list(report.methods.values()), words(), wording(report)
    shown = [column for column in (*PROMISED, *COSTS, *FURTHER) if column.shown(report)]
    found = {column.defines: column.meaning for column in shown if column.meaning}
    for field, of in said["fields"].items():
        found |= of if any(getattr(row, field) for row in rows) else {}
    found |= said["all"]
    for role, of in said["roles"].items():
        found |= of if any(row.role == role for row in rows) else {}
    return {term: own.meanings.get(term, text) for term, text in found.items()} | own.definitions
