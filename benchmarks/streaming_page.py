"""`stream.json`, and the table and figure that are drawn from it."""

from __future__ import annotations

import statistics

from mmspec.eval.report.figure import DASHED, figure, legend
from mmspec.eval.report.format import MISSING, fixed, memory, share
from mmspec.eval.report.svg import SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table, escape

from .page import benchmark_page
from .streaming import Stream, StreamGrowth, StreamRecord

ABOUT = (
    "Held: bytes of the caches of both models and of the decoder's state. Peak: most bytes in use "
    "while a block was made, by the device if it has its own memory, else by the process. Kept: "
    "what the long clip's further blocks would take if none were forgotten. A clip grows if the "
    "long one holds more than the short one, or if the peak of its last blocks is higher by more "
    "than 1 %, a process's own noise, and by more than 5 % of what would be kept. Ms: milliseconds "
    "of a block, the median; a drafted one takes less than one of the target's."
)


def stream_table(record: StreamRecord) -> Table:
    """A row per method."""
    rows = [Row(name, tuple(map(Cell, _cells(row)))) for name, row in record.methods.items()]
    short, long = record.blocks
    columns = (
        *("method", "drafted", f"held, {short} blocks", f"held, {long} blocks"),
        *(f"peak, {short} blocks", f"peak, last {short} of {long}", "kept", "grows"),
        *(f"ms, first {short} of {long}", f"ms, last {short}"),
    )
    return Table("Memory of a streamed clip.", columns, tuple(rows))


def _cells(row: StreamGrowth) -> list[str]:
    drafted = row.long.drafted / len(row.long.held)
    held = [memory(max(clip.held)) for clip in (row.short, row.long)]
    grows, few = "yes" if row.grows else "no", len(row.short.held)
    peaks = [MISSING, MISSING]
    if row.short.peak:
        peaks = [memory(max(row.short.peak)), memory(max(row.long.peak[-few:]))]
    took = [row.long.seconds[:few], row.long.seconds[-few:]]
    times = [fixed(1000 * statistics.median(part), 1) for part in took]
    return [share(drafted), *held, *peaks, memory(row.kept), grows, *times]


def stream_markdown(record: StreamRecord) -> str:
    """The page: what was measured, the table and the figure."""
    window = f"the last {record.window['blocks']} blocks and the first {record.window['sink']}"
    told = f"“{escape(record.prompt)}”, seed {record.seed}; a block reads {window}."
    figure = "![Bytes in use, block by block](stream.svg)"
    about = f"{ABOUT}\n\n{told}"
    return benchmark_page("Memory of a streamed clip", about, stream_table(record), figure)


def stream_figure(record: StreamRecord) -> str:
    """Bytes held by the long clip, and its peak, if known, less that of its first block."""
    with figure("stream", 3.6) as (canvas, axes):
        for i, (name, row) in enumerate(record.methods.items()):
            color = SERIES[i % len(SERIES)]
            for values, line, what in _lines(row.long):
                axes.plot(values, linestyle=line, color=color, label=f"{name}: {what}")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("block")
        axes.set_ylabel("megabytes")
        legend(canvas, axes)
        return standalone(canvas, "stream", "megabytes in use by block")


def _lines(clip: Stream) -> list[tuple[list[float], object, str]]:
    held = [count / 1e6 for count in clip.held], "-", "held"
    peak = [(count - clip.peak[0]) / 1e6 for count in clip.peak], DASHED, "peak less the first"
    return [held, peak] if clip.peak else [held]
