"""The page that a benchmark writes beside its record."""

from __future__ import annotations

from collections.abc import Sequence

from mmspec.eval.report.table import Table, escape


def benchmark_page(
    title: str, about: str, table: Table, figure: str, notes: Sequence[str] = ()
) -> str:
    """A page in Markdown: what was measured, notes to read first, the table and the figure.

    Args:
        figure: in Markdown.
        notes: text.
    """
    read_first = ["\n".join(f"> - {escape(note)}" for note in notes)] if notes else []
    return "\n\n".join([f"# {title}", about, *read_first, table.markdown(), figure]) + "\n"
