"""The tab of reports: one of the project's, an upload or a path, drawn."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gradio as gr

from ..errors import InputError
from .events import HEAVY, safely
from .folders import Folders
from .frontier import frontier_page, read_report, shipped_reports
from .limits import Limits, checked_text, checked_upload


class ReportTab:
    """Speed against quality of any report.

    Args:
        folders: which paths visitors may name.
        limits: what else they may ask for.
    """

    def __init__(self, folders: Folders, limits: Limits) -> None:
        self.folders, self.limits = folders, limits

    def build(self, tab: gr.Tab) -> None:
        """Its fields, and what they show."""
        gr.Markdown(
            "Speed against quality, of a `report.json` that `mmspec eval run` wrote. "
            "Up and to the right is better."
        )
        known = shipped_reports()
        with gr.Row():
            first = next(iter(known), "")
            chosen = gr.Dropdown(["", *known], value=first, label="A report of this project")
            upload = gr.File(label="Your report.json", file_types=[".json"], height=110)
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
            event(show, [name, field], shown, concurrency_limit=1, concurrency_id="draw", **HEAVY)

    def report(self, source: str, value: Any, request: Any) -> str:
        """A report as HTML; nothing for no value.

        Args:
            source: "shipped", "upload" or "path".
            value: name, uploaded file or path.

        Raises:
            InputError: there is no such report, or it can't be drawn.
        """
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
