"""`growth.json`, and the table and figure that are drawn from it."""

from __future__ import annotations

from typing import Any

from mmspec.eval.report.figure import DASHED, MARKERS, figure, legend
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.svg import MUTED, SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from .growth import Growth, GrowthRecord
from .page import benchmark_page

ABOUT = (
    "Calls of the target per sample (NFE), the prefill not counted, and how many times fewer they "
    "are than plain's. The exponent is a of NFE ∝ sideᵃ, fitted to the means: plain decoding has "
    "2, one call a row of the grid would have 1. Each side has a network of its own, and a draft "
    "model was trained for one side: what sets networks apart besides the size is in the exponent "
    "too. Intervals: 95 %, by resampling the prompts."
)


def growth_table(record: GrowthRecord) -> Table:
    """A row per method, a column per side, and the exponent."""
    pixels = _pixels(record)
    plain = record.methods.get("plain")
    rows = [
        Row(name, (Cell(row.contract), *(_calls(row, plain, side) for side in pixels), _power(row)))
        for name, row in record.methods.items()
    ]
    sides = (f"side {side} ({px} px)" for side, px in pixels.items())
    caption = f"Target calls by side of the grid, {record.samples} samples each."
    return Table(caption, ("method", "contract", *sides, "exponent"), tuple(rows))


def _pixels(record: GrowthRecord) -> dict[int, int]:
    """Pixels by side, of the sides that any method was measured at."""
    found = {side: px for row in record.methods.values() for side, px in row.pixels.items()}
    return dict(sorted(found.items()))


def _calls(row: Growth, plain: Growth | None, side: int) -> Cell:
    if side not in row.nfe:
        return Cell()
    notes: tuple[str, ...] = ()
    if plain is not None and row is not plain and side in plain.nfe:
        notes = (fixed(plain.nfe[side] / row.nfe[side], 2, unit="×"),)
    if side in row.sibling_nfe:
        notes += (f"and {fixed(row.sibling_nfe[side], 1)} of the sibling",)
    spread = interval(row.nfe_ci95.get(side), 1) if row is not plain else ""
    return Cell(fixed(row.nfe[side], 1), spread, notes)


def _power(row: Growth) -> Cell:
    return Cell(fixed(row.exponent, 2), interval(row.exponent_ci95, 2))


def growth_markdown(record: GrowthRecord) -> str:
    """The page: what was measured, the table and the figure."""
    figure = "![Target calls by side of the grid, both on logarithmic axes](growth.svg)"
    title = "Target calls against the side of the grid"
    return benchmark_page(title, ABOUT, growth_table(record), figure, record.notes)


def growth_figure(record: GrowthRecord) -> str:
    """Calls by side, both logarithmic, so that a power is a straight line."""
    pixels = _pixels(record)
    with figure("growth", 4.0) as (canvas, axes):
        for i, (name, row) in enumerate(record.methods.items()):
            look: dict[str, Any] = {"color": SERIES[i % len(SERIES)], "label": name}
            sides = sorted(row.nfe)
            calls = [row.nfe[side] for side in sides]
            axes.plot(sides, calls, marker=MARKERS[i % len(MARKERS)], **look)
        low, high = min(pixels), max(pixels)
        start = min(row.nfe[low] for row in record.methods.values() if low in row.nfe)
        axes.plot(
            [low, high],
            [start, start * high / low],
            color=MUTED,
            linewidth=1.1,
            linestyle=DASHED,
            label="with the side",
        )
        axes.set_xscale("log", base=2)
        axes.set_yscale("log", base=2)
        axes.set_xticks(list(pixels), [f"{side}\n{px} px" for side, px in pixels.items()])
        axes.yaxis.set_major_formatter(lambda calls, _: f"{calls:g}")
        axes.set_xlabel("side of the grid, tokens")
        axes.set_ylabel("target calls per sample")
        legend(canvas, axes)
        return standalone(canvas, "growth", "target calls by side of the grid")
