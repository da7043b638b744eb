"""Tab of reports: one of the project's, an upload or a path, drawn as speed and quality."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import gradio as gr

from .. import assets
from ..errors import InputError
from ..eval.report.frontier import calls_frontier, frontier
from ..eval.report.parts import parts, shown
from ..eval.report.svg import standalone
from ..eval.report.tables import headline
from ..eval.schema import Report
from ..files import to_json
from ..methods import PIPELINES
from . import markup
from .folders import Folders, told_as
from .limits import Limits, checked_text, checked_upload, safely
from .method_fields import DROP, WHOLE

_SHIPPED = Path(assets.__file__).resolve().parent / "reports"


class ReportTab:
    """Speed against quality of any report."""

    def __init__(self, folders: Folders, limits: Limits) -> None:
        self.folders, self.limits = folders, limits

    def build(self, tab: gr.Tab) -> None:
        gr.Markdown(
            "Speed against quality, of a `report.json` that `mmspec eval run` wrote. "
            "Up and to the right is better."
        )
        known = shipped_reports()
        with gr.Row(elem_classes="mm-sources"):
            first = next(iter(known), "")
            chosen = gr.Dropdown(
                ["", *known], value=first, label="A report of this project", min_width=WHOLE
            )
            upload = gr.File(
                label="Your report.json", file_types=[".json"], height=DROP, elem_classes="mm-drop"
            )
            path = gr.Textbox(
                "", label="Or its path", visible=self.folders.offered, placeholder="path/to/report"
            )
        shown = gr.HTML("", elem_classes="mm-report")

        def show(request: gr.Request, source: str, value: Any) -> str:
            return safely(lambda: self.report(source, value, request))

        for source, field, event in (
            ("shipped", chosen, chosen.change),
            ("shipped", chosen, tab.select),
            ("upload", upload, upload.change),
            ("path", path, path.submit),
        ):
            name = gr.State(source)
            event(
                show,
                [name, field],
                shown,
                concurrency_limit=1,
                concurrency_id="draw",
                api_visibility="private",
                show_progress="hidden",
            )

    def report(self, source: str, value: Any, request: Any) -> str:
        """A report as HTML, by the `source` "shipped", "upload" or "path"; nothing for no value."""
        if not value:
            return ""
        if source == "shipped":
            path, name = shipped_reports().get(str(value)), str(value)
            if path is None:
                raise InputError(f"there is no report {name!r} here")
        elif source == "upload":
            path, name = checked_upload(value, "report", self.limits), "the upload"
        else:
            name = checked_text(value, "the path", 1000)
            path = self.folders.find(name, request)
            if path.is_dir():  # its report may be a link that leads elsewhere
                path = self.folders.find(str(Path(name) / "report.json"), request)
        return frontier_page(read_report(path, name, self.limits))


def shipped_reports() -> dict[str, Path]:
    """Reports that come with the project, by name, those of a kind of model first.

    There are none in an installed package.
    """
    known = {file.parent.name: file for file in sorted(_SHIPPED.glob("*/report.json"))}
    return {name: known[name] for name in dict.fromkeys((*PIPELINES, *known)) if name in known}


def read_report(path: Path, name: str, limits: Limits) -> Report:
    """A report, small enough to be drawn; `name` is what visitors know it as."""
    if not path.is_file():
        raise InputError(f"{name} is no report: it is no file")
    if path.stat().st_size > limits.upload_bytes:
        raise InputError(f"{name} has more than {limits.upload_bytes:,} bytes")
    with told_as(name, path):
        report = Report.read(path)
    if len(report.methods) > limits.rows:
        raise InputError(f"{name} has {len(report.methods)} methods, more than {limits.rows}")
    return report


def frontier_page(report: Report) -> str:
    """HTML of a report's frontiers by seconds and by calls, and the table behind them.

    Figures are pictures of the page: nothing in a report can run as a script.
    """
    try:
        pieces = [_part(call, part) for call, part in parts(report).items()]
    except (ArithmeticError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"the report holds what can't be drawn: {error}") from error
    ran = to_json(dict(sorted(report.settings.items())))
    head = f"<h3>{markup.escape(report.suite)} <small>{markup.escape(report.pipeline)}</small></h3>"
    cut = [] if report.for_reporting else ["This run was cut short by --limit: not for reporting."]
    notes = "".join(f"<li>{markup.escape(note)}</li>" for note in [*cut, *report.notes])
    notes = f"<ul>{notes}</ul>" if notes else ""
    settings = f"<details><summary>Settings</summary><code>{markup.escape(ran)}</code></details>"
    return head + "".join(pieces) + notes + settings


def _part(call: str, part: Report) -> str:
    figures = ""
    for text, draw in (("by seconds", frontier), ("by calls of the target", calls_frontier)):
        svg = draw(shown(part), standalone)
        if svg is not None:
            uri = f"data:image/svg+xml;base64,{base64.b64encode(svg.encode()).decode()}"
            alt = markup.escape(f"quality against speed, {text}")
            figures += f'<img class="mm-plot" src="{uri}" alt="{alt}">'
    if not figures:
        figures = markup.message("There is no pair of speed and quality to draw in this report.")
    heading = f"<h4>{markup.escape(call)}</h4>" if call else ""
    header, *rows = headline(part).lines()
    return f'{heading}<div class="mm-plots">{figures}</div>{markup.table(header, rows)}'
