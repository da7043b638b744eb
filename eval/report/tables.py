"""The tables of a report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..schema import MethodResult, Report
from ..schema_parts import Quality
from . import format as f
from .columns import COSTS, FURTHER, PROMISED, SPEEDUP, Column, fewer_calls
from .parts import knob_text, swept
from .summary import MARKS, first_metric
from .table import Cell, Row, Table

# as they run
PHASES = (
    *("encode", "prefill", "backbone", "draft", "target"),
    *("verify", "resample", "update", "decode", "reward", "regenerate", "commit", "rest"),
)


def headline(report: Report) -> Table:
    """Main table, a row a method: contract, speed, quality with its verdict, and costs."""
    metrics = list(dict.fromkeys(m for row in report.methods.values() for m in row.quality))
    promised, costs = ([c for c in group if c.shown(report)] for group in (PROMISED, COSTS))
    columns = [*promised, *(_quality(report, metric) for metric in metrics), *costs]
    caption = "Methods, with 95 % intervals"
    caption += "; for quality then the paired difference to plain." if metrics else "."
    return _table(report, caption, columns)


def further(report: Report) -> Table | None:
    """Columns that the headline has no room for, if they hold something."""
    columns = [column for column in FURTHER if column.shown(report)]
    return _table(report, "Further figures, per sample.", columns) if columns else None


def sweeps(report: Report) -> Table | None:
    """The methods that ran at several values of their knob, from one end of it to the other."""
    rows = {name: report.methods[name] for names in swept(report).values() for name in names}
    if not rows:
        return None
    metric = first_metric(report)
    columns = [
        Column("knob", lambda r: Cell(f"{r.knob} {knob_text(r)}")),
        Column("fewer calls", partial(fewer_calls, report, digits=2)),
        *(SPEEDUP, *([] if metric is None else [_quality(report, metric)])),
    ]
    return _table(report, "Speed and quality over each method's knob.", columns, rows)


def tasks(report: Report) -> list[Table]:
    """For every metric that has parts, such as GenEval's tasks, the methods by part."""
    tables = []
    for metric in dict.fromkeys(m for row in report.methods.values() for m in row.quality):
        of = {n: row.quality[metric] for n, row in report.methods.items() if metric in row.quality}
        parts = list(dict.fromkeys(part for quality in of.values() for part in quality.parts))
        if not parts:
            continue
        digits = f.decimals(value for quality in of.values() for value in quality.parts.values())
        rows = []
        for name, quality in of.items():
            values = (*(quality.parts.get(part) for part in parts), quality.value)
            rows.append(labelled(report, name, [Cell(f.fixed(value, digits)) for value in values]))
        columns = ("method", *(part.replace("_", " ") for part in parts), "all")
        tables.append(Table(f"{metric} by task.", columns, tuple(rows)))
    return tables


def phases(report: Report) -> Table | None:
    """Mean milliseconds per sample by phase."""
    names = phase_names(report)
    if not names:
        return None
    columns = [Column(name, partial(_phase, name)) for name in names]
    columns.append(Column("sum", lambda r: _milliseconds(sum(r.phase_seconds.values()) or None)))
    return _table(report, "Milliseconds per sample by phase, mean.", columns)


def phase_names(report: Report) -> list[str]:
    """The phases that occur, in the order in which they run; unknown ones last."""
    seen = {name for row in report.methods.values() for name in row.phase_seconds}
    return [p for p in PHASES if p in seen] + sorted(seen.difference(PHASES))


def throughput(report: Report) -> Table | None:
    """Tokens per second and speed-up by batch size."""
    batches = sorted({b for row in report.methods.values() for b in row.throughput})
    if not batches:
        return None
    closed = report.settings.get("closed_loop", False)
    name = "{} at a time" if closed else "batch {}"
    columns = [Column(name.format(batch), partial(_throughput, batch)) for batch in batches]
    caption = "Output tokens per second of the token loop by batch size, median; then the paired "
    caption += "speed-up to plain at that size."
    if closed:
        caption = (
            "Output tokens per second of whole calls in a closed loop, by prompts that run at a "
            "time: as soon as one is done the next takes its place. Median; then the paired "
            "speed-up to plain at that load, the median seconds to a first token, and the tokens "
            "per second that one user sees."
        )
    return _table(report, caption, columns)


def costs(report: Report) -> Table | None:
    """Bare forward passes by tokens a row."""
    widths = sorted({n for by_width in report.costs.values() for n in by_width})
    if not widths:
        return None
    rows = [
        Row(who, tuple(_milliseconds(by_width.get(n)) for n in widths))
        for who, by_width in report.costs.items()
    ]
    caption = "Milliseconds of a bare forward pass by new tokens a row."
    return Table(caption, ("tokens", *map(str, widths)), tuple(rows))


def facts(caption: str, values: Mapping[str, Any]) -> Table:
    """Settings or environment, groups flattened."""
    rows = {name: (f.fact(value),) for name, value in flat(values).items()}
    return Table.of(caption, ("name", "value"), rows, numbers=False)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"call": {"top_k": 1}}` as `{"call.top_k": 1}`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping) and value
        result |= flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return result


def _table(
    report: Report,
    caption: str,
    columns: Sequence[Column],
    rows: Mapping[str, MethodResult] | None = None,
) -> Table:
    """Table of some rows; None: of all."""
    made = [
        labelled(report, name, [column.cell(row) for column in columns])
        for name, row in (report.methods if rows is None else rows).items()
    ]
    return Table(caption, ("method", *(c.title(report) for c in columns)), tuple(made))


def labelled(report: Report, name: str, cells: list[Cell]) -> Row:
    """A method's row, marked if it is no method to compare."""
    return Row(name, tuple(cells), MARKS.get(report.methods[name].role, ""))


def _quality(report: Report, metric: str) -> Column:
    of = [row.quality[metric] for row in report.methods.values() if metric in row.quality]
    larger = all(quality.larger_is_better for quality in of)
    return Column(f"{metric} {'↑' if larger else '↓'}", partial(quality_cell, report, metric))


def quality_cell(report: Report, metric: str, row: MethodResult) -> Cell:
    """A metric's value, its difference to plain with intervals, and the verdict."""
    of = [other.quality[metric] for other in report.methods.values() if metric in other.quality]
    quality, digits = row.quality.get(metric), f.decimals(found.value for found in of)
    if quality is None:
        return Cell()
    notes: tuple[str, ...] = ()
    if f.known(quality.difference_to_plain):
        difference = f.fixed(quality.difference_to_plain, digits, sign=True)
        notes = (Cell(difference, f.interval(quality.difference_ci95, digits)).line(),)
    if f.known(quality.share_of_plain):
        notes += (of_plain(quality),)
    spread = f.interval(quality.ci95, digits)
    return Cell(f.fixed(quality.value, digits), spread, notes, quality.verdict)


def of_plain(quality: Quality) -> str:
    """`98.4 % of plain's (96.9–99.8)`."""
    share, spread = quality.share_of_plain, quality.share_ci95
    if not f.known(share):
        return f.MISSING
    percent = None if spread is None else (100 * spread[0], 100 * spread[1])
    return Cell(f"{f.fixed(100 * share, 1)} % of plain's", f.interval(percent, 1)).line()


def _milliseconds(seconds: float | None) -> Cell:
    return Cell(f.significant(seconds * 1e3) if f.known(seconds) else f.MISSING)


def _phase(name: str, row: MethodResult) -> Cell:
    return _milliseconds(row.phase_seconds.get(name))


def _throughput(batch: int, row: MethodResult) -> Cell:
    many = row.throughput.get(batch)
    if many is None:
        return Cell()
    notes: tuple[str, ...] = ()
    if f.known(many.speedup_median):
        speedup = f.fixed(many.speedup_median, 2, unit="×")
        notes = (Cell(speedup, f.interval(many.speedup_ci95, 2)).line(),)
    if f.known(many.head_calls):
        notes += (f"{f.fixed(many.head_calls, 0)} head calls",)
    if f.known(many.first_token_seconds) and f.known(many.tokens_per_second_each):
        notes += (f"first after {f.significant(many.first_token_seconds)} s",)
        notes += (f"{f.significant(many.tokens_per_second_each)} a second each",)
    return Cell(f.fixed(many.tokens_per_second, 0), notes=notes)
