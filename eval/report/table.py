"""A table as data, so that page, Markdown and terminal show the same figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from .format import MISSING


@dataclass(frozen=True)
class Cell:
    """A figure, its interval, notes to it, and a verdict; all but the figure may be missing."""

    text: str = MISSING
    interval: str = ""
    notes: tuple[str, ...] = ()
    verdict: str = ""

    @property
    def tone(self) -> str:
        """Colour of the verdict: "good", "bad" or "open"."""
        if self.verdict == "no loss" or self.verdict.startswith("within"):
            return "good"
        return "bad" if self.verdict == "worse" else "open"

    def line(self) -> str:
        """Text of the cell in one line: `0.59 (0.55–0.63), +0.02, no loss`."""
        text = f"{self.text} ({self.interval})" if self.interval else self.text
        return ", ".join([text, *self.notes, *([self.verdict] if self.verdict else [])])


@dataclass(frozen=True)
class Row:
    """A row: what it is about, a mark such as "baseline", and its cells."""

    head: str
    cells: tuple[Cell, ...]
    mark: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under column names, the first of which heads the rows themselves.

    Columns of numbers are aligned to the right.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    numbers: bool = True

    @classmethod
    def of(
        cls,
        caption: str,
        columns: Sequence[str],
        rows: Mapping[str, Iterable[str]],
        numbers: bool = True,
    ) -> Table:
        """A table of texts, by what heads their row."""
        made = tuple(Row(head, tuple(map(Cell, texts))) for head, texts in rows.items())
        return cls(caption, tuple(columns), made, numbers)

    def lines(self) -> list[list[str]]:
        """Header and rows as text."""
        rows = [
            [f"{row.head} ({row.mark})" if row.mark else row.head, *(c.line() for c in row.cells)]
            for row in self.rows
        ]
        return [list(self.columns), *rows]

    def markdown(self) -> str:
        """The caption and a pipe table."""
        head, *rows = ["| " + " | ".join(map(escape, line)) + " |" for line in self.lines()]
        rule = "|---|" + ("---:|" if self.numbers else "---|") * (len(self.columns) - 1)
        return "\n".join([f"*{escape(self.caption)}*", "", head, rule, *rows])

    def aligned(self) -> str:
        """Columns in line, for a terminal."""
        lines = self.lines()
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join(
            "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
            for line in lines
        )


def escape(text: str) -> str:
    """User text that Markdown shows as it is, on one line."""
    text = " ".join(text.split())
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
