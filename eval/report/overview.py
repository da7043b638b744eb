"""A few telling rows of many reports in one table: the README's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..schema import MethodResult, Report
from . import format as f
from .columns import fewer_calls, speedup, tokens_per_call
from .parts import parts
from .summary import MARKS, first_metric, held
from .table import Cell, Row, Table, escape
from .tables import quality_cell
from .wording import wording

LEAST = 20  # prompts timed; of a report with fewer speed-ups say little
TOLD = {  # of a report's notes those that the table must not be read without
    "the machine was noisy": "a noisy machine, see its notes",
    "weights in half precision": "weights in half precision, which ship in eight bits since",
}
RULE = (
    "Rows: of every report and way to call, the fastest method that is exact, the fastest whose "
    "quality held, the fastest and the slowest of all, another library's fastest, and the fastest "
    "of the sceptic's rows; where nothing was timed, the best in place of the fastest. A report "
    f"that timed fewer than {LEAST} prompts has none. Speed-ups "
    "are of the token loop and of whole calls, of video of all clips together. Intervals are 95 %, "
    "differences are to `plain` on the same prompts and seeds."
)


def overview(paths: Sequence[Path]) -> str:
    """The table in Markdown, and under it what each report ran on.

    Reports that timed something, but on fewer than `LEAST` prompts, are left out.

    Raises:
        InputError: a path holds no report, one was cut short, or none is left.
    """
    reports = {path: Report.read(path) for path in paths}
    for path, report in reports.items():
        if not report.for_reporting:
            raise InputError(f"{path} was cut short by --limit: it is not for reporting")
    told = {
        path: report for path, report in reports.items() if _timed(report) not in range(1, LEAST)
    }
    if not told:
        raise InputError(f"no report that timed {LEAST} prompts or more, or judged without timing")
    rows = tuple(row for report in told.values() for row in _rows(report))
    columns: tuple[str, ...] = (
        "suite",
        "method",
        "contract",
        "fewer target calls",
        "a target call emits",
        "speed-up",
    )
    columns += ("whole calls", "quality, difference to plain")
    table = Table("", columns, rows, numbers=False).markdown().split("\n\n", 1)[1]
    ran = "\n".join(f"- {_ran(path, report)}" for path, report in told.items())
    return f"{table}\n\n{RULE}\n\n{ran}\n"


def telling(report: Report) -> list[str]:
    """The rows of one way to call that `RULE` names, the baseline left out."""
    timed = any(f.known(row.speedup) for row in report.methods.values())

    def rank(name: str) -> float:
        row = report.methods[name]
        if timed:
            return row.speedup or 0.0
        metric = first_metric(report)
        found = None if metric is None else row.quality.get(metric)
        return 0.0 if found is None else found.value * (1 if found.larger_is_better else -1)

    def of(role: str) -> list[str]:
        return [name for name, row in report.methods.items() if row.role == role]

    methods = of("method")
    exact = [n for n in methods if report.methods[n].contract.startswith("exact")]
    kept = [n for n in methods if n not in exact and held(report, report.methods[n])]
    best = [max(some, key=rank) for some in (exact, kept, methods) if some]
    best += [min(methods, key=rank)] if methods else []
    best += [max(some, key=rank) for some in (of("peer"), of("sceptic")) if some]
    return list(dict.fromkeys(best))


def _rows(report: Report) -> Iterator[Row]:
    for part in parts(report).values():
        metric = first_metric(part)
        for name in telling(part):
            row = part.methods[name]
            quality = Cell() if metric is None else quality_cell(part, metric, row)
            if metric is not None and quality.text != f.MISSING:
                quality = Cell(f"{metric} {quality.line()}")
            cells = (
                Cell(f"{name} ({MARKS[row.role]})" if row.role in MARKS else name),
                Cell(row.contract),
                fewer_calls(part, row),
                _emitted(report, row),
                speedup(row),
                _whole(row),
                quality,
            )
            yield Row(_title(report), cells)


def _whole(row: MethodResult) -> Cell:
    """The speed-up of whole calls; clips are timed whole."""
    if row.speedup_of_all is not None:
        return speedup(row)
    value, spread = row.speedup_end_to_end_median, row.speedup_end_to_end_ci95
    return Cell(f.fixed(value, 2, unit="×"), f.interval(spread, 2))


def _title(report: Report) -> str:
    return ": ".join(dict.fromkeys((report.pipeline, report.suite)))


def _emitted(report: Report, row: MethodResult) -> Cell:
    """`3.91 tokens`; of a method that asks the target for nothing, nothing."""
    cell = tokens_per_call(row)
    if cell.text == f.MISSING:
        return cell
    return Cell(f"{cell.text} {wording(report).emitted}", cell.interval)


def _ran(path: Path, report: Report) -> str:
    """What a report's figures hold for, and where all of them are."""
    page = (path if path.is_dir() else path.parent) / "report.md"
    machine, settings = report.environment, report.settings
    threads = machine["threads"]
    where = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    facts = [f"{where}, {threads} thread{'s' if threads > 1 else ''}"]
    facts += [str(machine[name]) for name in ("dtype", "resolution") if machine.get(name)]
    batches = settings["speed_batches"]
    facts += [f"batch {', '.join(map(str, batches))}"] if batches else []
    facts += [f"{name} {value}" for name, value in _asked(settings)]
    judged = max((row.n for row in report.methods.values() if row.quality), default=0)
    facts += [f"n = {_timed(report):,} timed"] if _timed(report) else ["not timed"]
    facts += [f"{judged:,} judged"] if judged else []
    if f.known(report.target_entropy):
        facts.append(f"target's entropy {f.fixed(report.target_entropy, 2)} nats a token")
    facts += [said for phrase, said in TOLD.items() if any(phrase in n for n in report.notes)]
    return f"[{_title(report)}]({page.as_posix()}): {escape('; '.join(facts))}"


def _asked(settings: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The arguments of calls that change what is hard to guess."""
    for name in ("guidance_scale", "temperature", "top_k"):
        if name in settings:
            yield name.replace("_scale", "").replace("_", "-"), f"{settings[name]:g}"
    for name, call in settings.get("calls", {}).items():
        yield name, ", ".join(f"{key} {value:g}" for key, value in call.items())


def _timed(report: Report) -> int:
    return max((row.n_speed for row in report.methods.values()), default=0)
