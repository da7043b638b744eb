"""`report.md` and `report.html` beside the `report.json` that they are drawn from."""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ..files import write_atomic
from ..schema import Report
from .html import to_html
from .markdown import to_markdown


def write_reports(folder: Path) -> list[Path]:
    """Draw both reports of a finished run; both are made before either is written.

    Raises:
        InputError: no such folder, no report of this version in it, or a line of its
            `samples.jsonl` that is not a sample.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}; name the one that `mmspec eval run -o` wrote")
    report = Report.read(folder)
    texts = {"report.md": to_markdown(report), "report.html": to_html(report, folder)}
    return [write_atomic(folder / name, text) for name, text in texts.items()]
