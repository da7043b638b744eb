"""`load.json`, and the table and the figure that are drawn from it."""

from __future__ import annotations

from typing import Any

from mmspec.eval.report.figure import DASHED, MARKERS, figure, legend
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.svg import MUTED, SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from ..page import benchmark_page
from .measure import ENOUGH, AtSize, LoadRecord

ABOUT = (
    'Speed of the default method with length "auto" over plain decoding, whole calls of the same '
    "prompts in turn: units (tokens, denoising steps, blocks) a second of all calls, and of the "
    "first ones, in which it finds out what pays. Behind it the median of single calls with its "
    "95 % interval, the very first call, and the shares of calls and rounds that it left plain."
)


def load_table(record: LoadRecord) -> Table:
    """A row per modality, a column per batch size."""
    sizes = sorted({n for one in record.modalities.values() for n in one.sizes})
    rows = []
    for name, one in record.modalities.items():
        cells = [_cell(one.sizes[n]) if n in one.sizes else Cell() for n in sizes]
        rows.append(Row(f"{name}: {one.method}", (Cell(one.contract), *cells)))
    caption = f"Speed over plain decoding, {record.turns} calls of either in turn."
    return Table(caption, ("modality", "contract", *(f"batch {n}" for n in sizes)), tuple(rows))


def _cell(size: AtSize) -> Cell:
    plain = f"{100 * size.plain_calls:.0f} % of calls, {100 * size.plain_rounds:.0f} % of rounds"
    notes = (
        f"median {fixed(size.median, 2, unit='×')} {interval(size.ci95, 2)}".rstrip(),
        f"first {fixed(size.first, 2, unit='×')}",
        f"plain: {plain}",
    )
    return Cell(fixed(size.speedup, 2, unit="×"), "", notes)


def load_notes(record: LoadRecord) -> list[str]:
    """Notes on sizes at which it was slower than it may be."""
    return [
        f"{name}, batch {rows}: {size.speedup:.3f} times plain decoding, below {ENOUGH}"
        for name, one in record.modalities.items()
        for rows, size in one.sizes.items()
        if not size.holds
    ]


def load_markdown(record: LoadRecord) -> str:
    """The page: what was measured, the table and the figure."""
    picture = "![Speed over plain decoding by batch size](load.svg)"
    title = "Length auto by load"
    return benchmark_page(title, ABOUT, load_table(record), picture, load_notes(record))


def load_figure(record: LoadRecord) -> str:
    """Speed over plain decoding by batch size; what it may lose at most is dashed."""
    with figure("load", 4.0) as (canvas, axes):
        for i, (name, one) in enumerate(record.modalities.items()):
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "label": name}
            speeds = [size.speedup for size in one.sizes.values()]
            axes.plot([*one.sizes], speeds, marker=MARKERS[i % len(MARKERS)], **look)
        axes.axhline(ENOUGH, color=MUTED, linewidth=1.1, linestyle=DASHED)
        axes.set_xscale("log", base=2)
        axes.set_xlabel("rows of a batch")
        axes.set_ylabel("speed over plain decoding")
        legend(canvas, axes)
        return standalone(canvas, "load", "speed over plain decoding by batch size")
