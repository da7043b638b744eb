"""`report.html`: one page that needs nothing else, neither files nor a network nor scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..contact_sheet import COLOURS
from ..schema import Report
from . import plots, tables
from .acceptance_tables import acceptance, accepted
from .definitions import definitions
from .figure import colors
from .frontier import batch_frontier, calls_frontier, frontier
from .gallery import gallery
from .parts import parts, shown, suffix
from .routing_tables import equal_shares
from .samples import Samples, read_samples, sample_files
from .summary import lede, title, warnings, what_ran
from .svg import VARIABLES, apart
from .text_tables import text_tables
from .wording import wording


def to_html(report: Report, folder: Path) -> str:
    """The page.

    Args:
        folder: of the run: its `samples.jsonl` and pictures, as far as they are there.

    Raises:
        InputError: a line of `samples.jsonl` is not a sample.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    samples = read_samples(folder)
    of_calls = parts(report)
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,  # prompts, names and notes come from users
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html.j2").render(
        title=title(report),
        ran=what_ran(report),
        warnings=warnings(report),
        parts=[_part(call, part, samples) for call, part in of_calls.items()],
        tasks=tables.tasks(report),
        settings=tables.facts("Settings", report.settings),
        environment=tables.facts("Environment", report.environment),
        gallery=gallery(report, samples, folder),
        sheets=COLOURS if wording(report).sheets else None,
        files=sample_files(report, folder),
        command=report.command,
        definitions=definitions(report),
        swatches={
            name: VARIABLES[color]
            for part in of_calls.values()
            for name, color in colors(part).items()
        },
    )
    return page.strip() + "\n"


def _part(call: str, part: Report, samples: Samples) -> dict[str, Any]:
    """What the page says of one way to call."""
    from markupsafe import Markup

    drawn = shown(part)
    figures = {
        "frontier": frontier(drawn),
        "batch": batch_frontier(drawn),
        "calls": calls_frontier(drawn),
        "acceptance": plots.acceptance(drawn),
        "latency": plots.latency(drawn),
        "throughput": plots.throughput(drawn),
        "speedups": plots.speedups(drawn, samples),
    }
    return {
        "call": call,
        "mark": suffix(call),
        "lede": lede(part),
        "headline": tables.headline(part),
        "further": [t for t in (tables.further(part), *text_tables(part)) if t is not None],
        "sweeps": tables.sweeps(part),
        "equal_shares": equal_shares(part),
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
