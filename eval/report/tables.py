"""The tables of a report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from ..schema import MethodResult, Report
from ..schema_parts import Quality
from . import format as f
from .families import knob_text, swept
from .summary import MARKS, calls_saved, counted, first_metric
from .table import Cell, Row, Table

Column = tuple[str, Callable[[MethodResult], Cell]]

# as they run
PHASES = (
    *("encode", "prefill", "backbone", "draft", "target"),
    *("verify", "resample", "update", "decode", "reward", "regenerate", "commit", "rest"),
)


def headline(report: Report) -> Table:
    """Every method's row: contract, cost, speed, and quality with its verdict."""
    metrics = list(dict.fromkeys(m for row in report.methods.values() for m in row.quality))
    columns: list[Column] = [
        ("contract", lambda r: Cell(r.contract)),
        ("same output", lambda r: Cell(f.share(r.same_output))),
        ("total variation", _variation),
        ("n", _n),
        ("drafted", lambda r: Cell(f.share(r.drafted_share))),
        *_calls(report),
        ("seconds", lambda r: Cell(f.significant(r.seconds_median))),
        ("speed-up", speedup),
        (
            "of the median clip",
            lambda r: (
                Cell(f.fixed(r.speedup_median, 2, unit="×"), f.interval(r.speedup_ci95, 2))
                if r.speedup_of_all is not None
                else Cell()
            ),
        ),
        ("ideal", lambda r: Cell(f.fixed(r.ideal_speedup, 2, unit="×"))),
        ("efficiency", lambda r: Cell(f.share(r.engine_efficiency))),
        ("peak memory", lambda r: Cell(f.memory(r.peak_memory_bytes))),
    ]
    columns = [c for c in columns if c[0] not in _SELDOM or _filled(report, c)]
    columns += [_quality(report, metric) for metric in metrics]
    caption = "Methods, with 95 % intervals"
    caption += "; for quality then the paired difference to plain." if metrics else "."
    return _table(report, caption, columns)


def further(report: Report) -> Table | None:
    """What the headline has no room for; only columns that hold something."""
    columns: list[Column] = [
        (
            "steps that the head read, a token" if counted(report) else "target tokens",
            lambda r: Cell(f.fixed(r.target_tokens_per_sample, 1)),
        ),
        ("latency p50, s", lambda r: Cell(f.significant(r.seconds_median))),
        ("latency p95, s", lambda r: Cell(f.significant(r.seconds_p95))),
        (
            f"{OUTPUTS.get(report.pipeline, 'outputs')} per second",
            lambda r: Cell(f.significant(r.outputs_per_second)),
        ),
        (
            f"{UNITS.get(report.pipeline, 'tokens')} per second",
            lambda r: Cell(f.significant(r.tokens_per_second)),
        ),
        ("seconds of the token loop", lambda r: Cell(f.significant(r.decode_seconds_median))),
        (
            "speed-up end to end",
            lambda r: Cell(
                f.fixed(r.speedup_end_to_end_median, 2, unit="×"),
                f.interval(r.speedup_end_to_end_ci95, 2),
            ),
        ),
        ("energy, J", lambda r: Cell(f.significant(r.energy_joules_per_sample))),
        ("entropy, nats per token", lambda r: Cell(f.fixed(r.target_entropy, 2))),
        ("drafter's head calls", lambda r: Cell(f.fixed(r.drafter_head_calls_per_sample, 1))),
        (
            "drafter's backbone calls",
            lambda r: Cell(f.fixed(r.drafter_backbone_calls_per_sample, 1)),
        ),
    ]
    columns = [column for column in columns if _filled(report, column)]
    if report.pipeline == "video":  # whole calls are what is timed, see `headline`
        columns = [column for column in columns if column[0] not in _LOOP]
    return _table(report, "Further figures, per sample.", columns) if columns else None


def sweeps(report: Report) -> Table | None:
    """The methods that ran at several values of their knob, from one end of it to the other."""
    rows = {name: report.methods[name] for names in swept(report).values() for name in names}
    if not rows:
        return None
    columns: list[Column] = [
        ("knob", lambda r: Cell(f"{r.knob} {knob_text(r)}")),
        ("fewer calls", partial(fewer_calls, report, digits=2)),
        ("speed-up", speedup),
    ]
    metric = first_metric(report)
    columns += [] if metric is None else [_quality(report, metric)]
    made = [
        labelled(report, name, [make(row) for _, make in columns]) for name, row in rows.items()
    ]
    names = ("method", *(name for name, _ in columns))
    return Table("Speed and quality over each method's knob.", names, tuple(made))


def tasks(report: Report) -> list[Table]:
    """For every metric that has parts, such as GenEval's tasks, the methods by part."""
    tables = []
    for metric in dict.fromkeys(m for row in report.methods.values() for m in row.quality):
        of = {n: row.quality[metric] for n, row in report.methods.items() if metric in row.quality}
        parts = list(dict.fromkeys(part for quality in of.values() for part in quality.parts))
        if not parts:
            continue
        digits = f.decimals(value for quality in of.values() for value in quality.parts.values())

        def cells(quality: Quality, parts: list[str] = parts, digits: int = digits) -> list[Cell]:
            values = [quality.parts.get(part) for part in parts]
            return [Cell(f.fixed(value, digits)) for value in (*values, quality.value)]

        rows = [labelled(report, name, cells(quality)) for name, quality in of.items()]
        columns = ("method", *(part.replace("_", " ") for part in parts), "all")
        tables.append(Table(f"{metric} by task.", columns, tuple(rows)))
    return tables


def phases(report: Report) -> Table | None:
    """Mean milliseconds per sample by phase."""
    names = phase_names(report)
    if not names:
        return None
    columns: list[Column] = [
        (name, lambda r, name=name: Cell(_milliseconds(r.phase_seconds.get(name))))  # type: ignore[misc]
        for name in names
    ]
    columns.append(("sum", lambda r: Cell(_milliseconds(sum(r.phase_seconds.values()) or None))))
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
    columns: list[Column] = [
        (f"batch {batch}", lambda r, batch=batch: _throughput(r, batch))  # type: ignore[misc]
        for batch in batches
    ]
    caption = "Output tokens per second of the token loop by batch size, median; then the paired "
    return _table(report, caption + "speed-up to plain at that size.", columns)


def costs(report: Report) -> Table | None:
    """Bare forward passes by tokens a row."""
    widths = sorted({n for by_width in report.costs.values() for n in by_width})
    if not widths:
        return None
    rows = [
        Row(who, tuple(Cell(_milliseconds(by_width.get(n))) for n in widths))
        for who, by_width in report.costs.items()
    ]
    caption = "Milliseconds of a bare forward pass by new tokens a row."
    return Table(caption, ("tokens", *map(str, widths)), tuple(rows))


def facts(caption: str, values: Mapping[str, Any]) -> Table:
    """Settings or environment, groups flattened."""
    rows = [Row(name, (Cell(f.fact(value)),)) for name, value in flat(values).items()]
    return Table(caption, ("name", "value"), tuple(rows), numbers=False)


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"call": {"top_k": 1}}` as `{"call.top_k": 1}`."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        inner = isinstance(value, Mapping) and value
        result |= flat(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return result


# what a call makes, and what that is made of
OUTPUTS = {"image": "images", "vlm": "answers", "continuous": "images", "video": "clips"}
UNITS = {"image": "tokens", "vlm": "tokens", "continuous": "tokens", "video": "blocks"}

# columns that only some reports have something for
_LOOP = ("seconds of the token loop", "speed-up end to end")
_SELDOM = (
    *("same output", "total variation", "drafted", "sibling's calls", "ideal", "efficiency"),
    *("drafter's head calls", "of the median clip"),
)


def _filled(report: Report, column: Column) -> bool:
    """Whether a column holds anything."""
    return any(column[1](row).text != f.MISSING for row in report.methods.values())


def _table(report: Report, caption: str, columns: list[Column]) -> Table:
    rows = [
        labelled(report, name, [make(row) for _, make in columns])
        for name, row in report.methods.items()
    ]
    return Table(caption, ("method", *(name for name, _ in columns)), tuple(rows))


def labelled(report: Report, name: str, cells: list[Cell]) -> Row:
    """A method's row, marked if it is no method to compare."""
    return Row(name, tuple(cells), MARKS.get(report.methods[name].role, ""))


def _variation(row: MethodResult) -> Cell:
    if row.tv_per_step is None:
        return Cell()
    mean, most = map(f.tiny, row.tv_per_step)
    return Cell(mean, notes=(f"max {most}",))


def _calls(report: Report) -> list[Column]:
    """What a sample takes of the target."""
    if not counted(report):
        return [
            ("NFE", lambda r: Cell(f.fixed(r.nfe_per_sample, 1))),
            ("sibling's calls", lambda r: Cell(f.fixed(r.sibling_calls_per_sample, 1))),
            ("tokens per call", tokens_per_call),
        ]
    return [
        ("head calls", lambda r: Cell(f.fixed(r.head_calls_per_sample, 1))),
        ("drafter's head calls", lambda r: Cell(f.fixed(_drafted(r), 1))),
        ("head rows", lambda r: Cell(f.fixed(r.head_rows_per_sample, 0))),
        ("backbone calls", lambda r: Cell(f.fixed(r.backbone_calls_per_sample, 1))),
        ("steps per call", tokens_per_call),
    ]


def _drafted(row: MethodResult) -> float | None:
    """Calls of the drafter's head; None: there are none."""
    return row.drafter_head_calls_per_sample or None


def _n(row: MethodResult) -> Cell:
    both = row.n_speed and row.quality
    return Cell(f"{row.n:,}", notes=(f"{row.n_speed:,} timed",) if both else ())


def tokens_per_call(row: MethodResult) -> Cell:
    """The mean acceptance length; nothing where the target is not asked."""
    length = row.mean_acceptance_length if row.nfe_per_sample else None
    return Cell(f.fixed(length, 2), f.interval(row.mean_acceptance_length_ci95, 2))


def fewer_calls(report: Report, row: MethodResult, digits: int = 1) -> Cell:
    """Of the target, and beside it with those of a sibling: a call of it may cost as much.

    Of continuous tokens the calls of a drafter's head stand beside it: how large it is, and what a
    call of it costs, no count tells.
    """
    alone = f.fixed(calls_saved(report, row), digits, unit="×")
    if row.drafter_head_calls_per_sample:  # one after the other, and not the target's
        drafted = f.fixed(row.drafter_head_calls_per_sample, 0)
        if alone == f.MISSING:
            return Cell(alone, notes=(f"the drafter's {drafted} head calls alone",))
        return Cell(alone, notes=(f"and {drafted} head calls of the drafter",))
    if not f.known(row.sibling_calls_per_sample):
        return Cell(alone)
    both = f.fixed(calls_saved(report, row, sibling=True), digits, unit="×")
    calls = f.fixed(row.sibling_calls_per_sample, 1)
    if alone == f.MISSING:
        return Cell(both, notes=(f"the sibling's {calls} calls alone",))
    return Cell(alone, notes=(f"{both} with the sibling's {calls} calls",))


def speedup(row: MethodResult) -> Cell:
    """Of the token loop, of video that of all clips together, with its interval."""
    return Cell(f.fixed(row.speedup, 2, unit="×"), f.interval(row.speedup_interval, 2))


def _quality(report: Report, metric: str) -> Column:
    of = [row.quality[metric] for row in report.methods.values() if metric in row.quality]
    larger = all(quality.larger_is_better for quality in of)
    return f"{metric} {'↑' if larger else '↓'}", partial(quality_cell, report, metric)


def quality_cell(report: Report, metric: str, row: MethodResult) -> Cell:
    """A metric's value, its difference to plain with intervals, and the verdict."""
    of = [other.quality[metric] for other in report.methods.values() if metric in other.quality]
    quality, digits = row.quality.get(metric), f.decimals(found.value for found in of)
    if quality is None:
        return Cell()
    notes: tuple[str, ...] = ()
    if f.known(quality.difference_to_plain):
        difference = f.fixed(quality.difference_to_plain, digits, sign=True)
        notes = (_with(difference, f.interval(quality.difference_ci95, digits)),)
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
    return _with(f"{f.fixed(100 * share, 1)} % of plain's", f.interval(percent, 1))


def _milliseconds(seconds: float | None) -> str:
    return f.significant(seconds * 1e3) if f.known(seconds) else f.MISSING


def _throughput(row: MethodResult, batch: int) -> Cell:
    many = row.throughput.get(batch)
    if many is None:
        return Cell()
    notes: tuple[str, ...] = ()
    if f.known(many.speedup_median):
        speedup = f.fixed(many.speedup_median, 2, unit="×")
        notes = (_with(speedup, f.interval(many.speedup_ci95, 2)),)
    if f.known(many.head_calls):
        notes += (f"{f.fixed(many.head_calls, 0)} head calls",)
    return Cell(f.fixed(many.tokens_per_second, 0), notes=notes)


def _with(figure: str, spread: str) -> str:
    return f"{figure} ({spread})" if spread else figure
