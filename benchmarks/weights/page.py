"""`weights.json`, and the table and figure that are drawn from it."""

from __future__ import annotations

from mmspec.eval.report.figure import figure, legend
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.svg import SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from ..page import benchmark_page
from .measure import ROWS, WeightsRecord

ABOUT = (
    "The target on weights in several forms, in turn on one machine: bytes of the linear layers "
    "that are rounded; milliseconds of a call by its tokens (of clips: clips), and of the linear "
    "layers alone; total variation between its laws and the unrounded ones, at every token of the "
    "unrounded model's own outputs at temperature 1, and how often the likeliest token is another; "
    "plain decoding's seconds a token unrounded over rounded, in pairs by prompt, with 95 % "
    "intervals."
)


def weights_table(record: WeightsRecord) -> Table:
    """A row a form."""
    rows = []
    for name, row in record.forms.items():
        calls = [f"{row.milliseconds[n]:.1f}" for n in ROWS]
        grown = row.milliseconds[ROWS[-2]] / row.milliseconds[1]
        speed = Cell(fixed(row.speedup, 2, unit="×"), interval(row.speedup_ci95, 2))
        moved = [fixed(x, 4) for x in (row.variation, row.most_variation, row.flips)]
        cells = [f"{row.megabytes:.1f}", *calls, f"{row.maps:.1f}", f"{grown:.2f}", *moved]
        rows.append(Row(name, (*map(Cell, cells), speed)))
    calls = [f"ms, {n}" for n in ROWS]
    growth, moved = f"T({ROWS[-2]})/T(1)", ["variation, mean", "largest", "argmax flips"]
    columns = ("weights", "MB", *calls, "maps alone, 1", growth, *moved, "plain, speed-up")
    machine, prompts = record.environment["processor"], _counted(record.samples, "prompt")
    caption = f"{prompts}, {_counted(record.laws, 'law')}; {machine}."
    return Table(caption, columns, tuple(rows))


def weights_markdown(record: WeightsRecord) -> str:
    """The page: what was measured, the table and the figure."""
    drawn = "![Seconds of a call over those of one token, by tokens](weights.svg)"
    threads = _counted(record.environment["threads"], "thread")
    title = f"Rounded weights: {record.model} ({record.kind}), {threads}"
    return benchmark_page(title, ABOUT, weights_table(record), drawn)


def _counted(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def weights_figure(record: WeightsRecord) -> str:
    """Cost of a call over that of one token, by form."""
    with figure("weights", 2.6) as (canvas, axes):
        for number, (name, row) in enumerate(record.forms.items()):
            grown = [row.milliseconds[n] / row.milliseconds[1] for n in ROWS]
            axes.plot(ROWS, grown, "o-", color=SERIES[number], label=name)
        axes.set_xlabel("tokens of a call")
        axes.set_ylabel("T(n) / T(1)")
        legend(canvas, axes)
        return standalone(canvas, "weights", "cost of a call by its tokens")
