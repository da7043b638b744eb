"""The reports that people read, drawn from a finished run's `report.json` and samples."""

from .html import to_html
from .markdown import to_markdown
from .write import write_reports

__all__ = ["to_html", "to_markdown", "write_reports"]
