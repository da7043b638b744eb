"""`report.html`: one page that needs nothing else, neither files nor a network nor scripts."""

from __future__ import annotations

from pathlib import Path

from ..schema import Report
from . import plots, tables
from .figure import colors
from .frontier import calls_frontier, frontier
from .gallery import gallery
from .samples import read_samples
from .svg import VARIABLES
from .words import DEFINITIONS, lede, title, warnings, what_ran


def to_html(report: Report, folder: Path) -> str:
    """The page.

    Args:
        folder: of the run: its `samples.jsonl` and pictures, as far as they are there.

    Raises:
        InputError: a line of `samples.jsonl` is not a sample.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    samples = read_samples(folder)
    figures = {
        "frontier": frontier(report),
        "calls": calls_frontier(report),
        "acceptance": plots.acceptance(report),
        "latency": plots.latency(report),
        "throughput": plots.throughput(report),
        "speedups": plots.speedups(report, samples),
    }
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
        lede=lede(report),
        headline=tables.headline(report),
        further=tables.further(report),
        sweeps=tables.sweeps(report),
        tasks=tables.tasks(report),
        acceptance=tables.acceptance(report),
        phases=tables.phases(report),
        costs=tables.costs(report),
        throughput=tables.throughput(report),
        settings=tables.facts("Settings", report.settings),
        environment=tables.facts("Environment", report.environment),
        gallery=gallery(report, samples, folder),
        command=report.command,
        definitions=DEFINITIONS,
        swatches={name: VARIABLES[color] for name, color in colors(report).items()},
        figures={name: Markup(svg or "") for name, svg in figures.items()},
    )
    return page.strip() + "\n"
