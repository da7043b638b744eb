"""`online.json`, and the table and figure that are drawn from it."""

from __future__ import annotations

import numpy as np

from mmspec.eval.report.figure import DASHED, figure, legend
from mmspec.eval.report.format import fixed, interval
from mmspec.eval.report.svg import MUTED, SERIES, standalone
from mmspec.eval.report.table import Cell, Row, Table

from ..page import benchmark_page
from .measure import FROZEN, LEARNING, TABLE, OnlineRecord

PARTS = 4  # rows of a domain
SMOOTH = 8  # answers of a point of the curve

ABOUT = (
    "Tokens per call of the target, answer by answer, as the prompts' domain changes. The head "
    "that learns takes steps between answers at {places} (OSD); the frozen one is the same head as "
    "it was. A table of successors that lives on (token-recycling) learns, too, and takes no "
    "gradients. Seconds are those of answers and of learning together. "
    "Intervals: 95 %, by resampling the answers of a row, the same ones for both of a difference."
)


def online_table(record: OnlineRecord) -> Table:
    """A row per part of a domain: tokens per call of each drafter, and what learning gained."""
    frozen, learning, table = (record.runs[name] for name in (FROZEN, LEARNING, TABLE))
    rows = []
    for name, part in record.parts(PARTS):
        cells = []
        for run in (frozen, learning, table):
            told, spread = run.tokens_per_call(part)
            cells.append(Cell(fixed(told, 2), interval(spread, 2)))
        gain, spread = learning.gain(frozen, part)
        cells.append(Cell(fixed(gain, 2, sign=True), interval(spread, 2)))
        speed = frozen.seconds_per_token(part) / learning.seconds_per_token(part)
        cells.append(Cell(fixed(speed, 2, unit="×")))
        rows.append(Row(f"{name}, answers {part.start + 1}–{part.stop}", tuple(cells)))
    columns = (
        *("answers", f"{record.method}, frozen", f"{record.method}, learning", table.method),
        *("gained by learning", "speed, learning charged"),
    )
    caption = f"Tokens per call of {record.model} as the domain changes."
    return Table(caption, columns, tuple(rows))


def online_notes(record: OnlineRecord) -> list[str]:
    """Answers that are others than the frozen head's, at temperature 0."""
    count = sum(answers for _, answers in record.domains)
    return [
        f"{name}: {count - run.same} of {count} answers are others than with the frozen head: two "
        "logits were as good as equal"
        for name, run in record.runs.items()
        if record.temperature == 0 and run.same < count
    ]


def online_markdown(record: OnlineRecord) -> str:
    """The page: what was measured, the table and the figure."""
    figure = "![Tokens per call over the answers, the changes of domain marked](online.svg)"
    title, notes = "Drafts as the domain changes", online_notes(record)
    fell = "the tokens where its drafts fell"
    about = ABOUT.format(places=fell if record.lessons.fallen else "all their tokens")
    return benchmark_page(title, about, online_table(record), figure, notes)


def online_figure(record: OnlineRecord) -> str:
    """Tokens per call over the answers, the mean of `SMOOTH` of them at each."""
    with figure("online", 3.2) as (canvas, axes):
        for number, (name, run) in enumerate(record.runs.items()):
            size = min(SMOOTH, len(run.calls))
            told, calls = (np.convolve(x, np.ones(size), "valid") for x in (run.emitted, run.calls))
            label = run.method if name == TABLE else f"{run.method}, {name}"
            axes.plot(
                np.arange(size, len(run.calls) + 1), told / calls, label=label, color=SERIES[number]
            )
        ends = np.cumsum([answers for _, answers in record.domains])[:-1]
        for end in ends:
            axes.axvline(end + 0.5, color=MUTED, linewidth=1.1, linestyle=DASHED)
        axes.set_xlabel(f"answers: {', then '.join(name for name, _ in record.domains)}")
        axes.set_ylabel("tokens per call")
        legend(canvas, axes)
        return standalone(canvas, "online", "tokens per call over the answers")
