"""`report.md`, `report.html` and figures beside the `report.json` that they are drawn from."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ...files import write_atomic
from ..schema import Report
from .frontier import batch_frontier, calls_frontier, frontier
from .html import to_html
from .markdown import to_markdown
from .parts import parts, shown, suffix
from .samples import sample_files
from .svg import standalone

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
