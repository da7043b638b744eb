"""A few telling rows of many reports: the README's table and the page of results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...methods import PIPELINES
from ..schema import MethodResult, Report
from . import format as f
from .columns import END_TO_END, fewer_calls, speedup, tokens_per_call
from .matrix import published
from .parts import parts
from .summary import EXACT, MARKS, baseline, first_metric, held, leaders
from .table import Cell, Row, Table, escape
from .tables import quality_cell
from .wording import wording

LEAST = 20  # prompts timed; of a report with fewer speed-ups say little
TOLD = {  # of a report's notes those that the table must not be read without
    "the machine was noisy": "a noisy machine, see its notes",
    "weights in half precision": "weights in half precision, which ship in eight bits since",
}
RULE = (
    "The rows of a report, for each way to call: the fastest exact method, the fastest method "
    "whose quality held, the fastest and the slowest method of all, the fastest peer, and the "
    "fastest of the sceptic's rows. Where nothing was timed, the best row stands in place of the "
    f"fastest. A report that timed fewer than {LEAST} prompts is left out."
)
SHORT_RULE = (
    "Each kind of model has two rows. The first is the fastest exact method or, where none is "
    "exact, the fastest whose quality held. The second is the fastest of the *sceptic's rows*, "
    "cheap alternatives that a method has to beat; a report without one shows its slowest method."
)
_COLUMNS = (
    *("method", "contract", "fewer target calls", "a target call emits"),
    *("speed-up", "whole calls", "quality, difference to plain"),
)


def overview(paths: Sequence[Path], base: Path, short: bool = False) -> str:
    """A table of every report in Markdown, or one short table of all of them.

    Reports that timed something, but on fewer than `LEAST` prompts, are left out.

    Args:
        base: folder of the page, from which links lead to the reports.
        short: two rows of each kind of model, by `SHORT_RULE`; reports without times are left out.
            The rows are of the report that timed the most, of those that judged if there are any.

    Raises:
        InputError: a path holds no report, one was cut short, or none is left.
    """
    reports = {path: Report.read(path) for path in paths}
    for path, report in reports.items():
        if not report.for_reporting:
            raise InputError(f"{path} was cut short by --limit: it is not for reporting")
    few = range(0 if short else 1, LEAST)
    told = {path: report for path, report in reports.items() if _timed(report) not in few}
    if not told:
        raise InputError(f"no report that timed {LEAST} prompts or more, or judged without timing")
    if short:
        return _short(told, base)
    blocks = [RULE]
    for path, report in told.items():
        title = ": ".join(dict.fromkeys((report.pipeline, report.suite)))
        blocks += [f"### {title}", _ran(path, report, base)]
        for call, part in parts(report).items():
            blocks += [f"#### {call}"] if call else []
            blocks.append(_table(_COLUMNS, _rows(part)))
    return "\n\n".join(blocks) + "\n"


def _table(columns: Sequence[str], rows: Iterable[Row]) -> str:
    return Table("", tuple(columns), tuple(rows), numbers=False).markdown().split("\n\n", 1)[1]


def _short(told: Mapping[Path, Report], base: Path) -> str:
    """Two rows of a kind, their rule, and links to the reports with what must be known of them."""
    rows, links = [], []
    for kind in dict.fromkeys((*PIPELINES, *(report.pipeline for report in told.values()))):
        of = {path: report for path, report in told.items() if report.pipeline == kind}
        if of:
            path = max(of, key=lambda path: (_judged(of[path]) > 0, _timed(of[path])))
            real = published(of[path])
            name = kind if real is None else f"{kind} ({real})"
            rows += [Row(name, cells) for cells in _two(of[path])]
            notes = _notes(of[path])
            links.append(f"[{kind}]({_page(path, base)})" + (f" ({notes})" if notes else ""))
    table = _table(("model", "method", "contract", "speed-up", "quality"), rows)
    return f"{table}\n\n{SHORT_RULE} Their reports: {', '.join(links)}.\n"


def _two(report: Report) -> Iterator[tuple[Cell, ...]]:
    """Method, contract, speed-up and quality of the rows that `SHORT_RULE` names."""
    rows = [(part, row, n) for part in parts(report).values() for n, row in part.methods.items()]
    rows.sort(key=lambda of: -(of[1].speedup or 0.0))  # the fastest first
    methods = [of for of in rows if of[1].role == "method"]
    sceptics = [of for of in rows if of[1].role == "sceptic"]
    best = [of for of in methods if of[1].contract in EXACT]
    best = best or [of for of in methods if held(*of[:2])]
    for part, row, name in best[:1] + (sceptics[:1] or methods[-1:]):
        yield Cell(_name(name, row)), Cell(row.contract), speedup(row), _against_plain(part, row)


def _against_plain(part: Report, row: MethodResult) -> Cell:
    """`geneval 0.588, plain 0.570`, and the verdict."""
    metric, plain = first_metric(part), baseline(part)
    if metric is None or plain is None or metric not in row.quality:
        return Cell()
    own, theirs = row.quality[metric], part.methods[plain].quality[metric]
    digits = f.decimals((own.value, theirs.value))
    values = f"{f.fixed(own.value, digits)}, plain {f.fixed(theirs.value, digits)}"
    return Cell(f"{metric} {values}", verdict=own.verdict)


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
    best = leaders(report, methods, rank)
    best += [min(methods, key=rank)] if methods else []
    best += [max(some, key=rank) for some in (of("peer"), of("sceptic")) if some]
    return list(dict.fromkeys(best))


def _rows(part: Report) -> Iterator[Row]:
    """The rows that `RULE` names, of one way to call, which their names then leave out."""
    metric = first_metric(part)
    for name in telling(part):
        row = part.methods[name]
        quality = Cell() if metric is None else quality_cell(part, metric, row)
        if quality.text != f.MISSING:
            quality = Cell(f"{metric} {quality.line()}")
        emitted = tokens_per_call(row)
        if emitted.text != f.MISSING:
            emitted = Cell(f"{emitted.text} {wording(part).emitted}", emitted.interval)
        cells = (
            *(Cell(row.contract), fewer_calls(part, row), emitted, speedup(row)),
            *(END_TO_END.cell(row) if row.speedup_of_all is None else speedup(row), quality),
        )
        yield Row(_name(name.removesuffix(f"@{row.call}"), row), cells)


def _name(name: str, row: MethodResult) -> str:
    """Name of a row as `--methods` reads it, with blanks where a narrow page may break it."""
    name = name.replace(",", ", ")
    return f"{name} ({MARKS[row.role]})" if row.role in MARKS else name


def _notes(report: Report) -> str:
    notes = "\n".join(report.notes)
    return "; ".join(said for phrase, said in TOLD.items() if phrase in notes)


def _page(path: Path, base: Path) -> str:
    """A report's own page, as a link from the folder `base`."""
    page = (path if path.is_dir() else path.parent) / "report.md"
    return Path(os.path.relpath(page, base)).as_posix()


def _ran(path: Path, report: Report, base: Path) -> str:
    """Conditions of a report's figures, and a link to all of them."""
    machine, settings = report.environment, report.settings
    threads = machine["threads"]
    where = machine["processor"] if machine["device"] == "cpu" else machine["device"]
    facts = [f"{where}, {threads} thread{'s' if threads > 1 else ''}"]
    facts += [str(machine[name]) for name in ("dtype", "resolution") if machine.get(name)]
    batches = settings["speed_batches"]
    facts += [f"batch {', '.join(map(str, batches))}"] if batches else []
    for name in ("guidance_scale", "temperature", "top_k"):  # they change what is hard to guess
        if name in settings:
            facts.append(f"{name.replace('_scale', '').replace('_', '-')} {settings[name]:g}")
    for name, call in settings.get("calls", {}).items():
        facts.append(f"{name} " + ", ".join(f"{key} {_number(of)}" for key, of in call.items()))
    judged = _judged(report)
    facts += [f"n = {_timed(report):,} timed"] if _timed(report) else ["not timed"]
    facts += [f"{judged:,} judged"] if judged else []
    if f.known(report.target_entropy):
        facts.append(f"target's entropy {f.fixed(report.target_entropy, 2)} nats a token")
    facts += [notes] if (notes := _notes(report)) else []
    return f"[The report]({_page(path, base)}): {escape('; '.join(facts))}."


def _number(value: Any) -> str:
    """A setting without idle digits; it may also be a text or a list."""
    return f"{value:g}" if isinstance(value, int | float) else f.fact(value)


def _timed(report: Report) -> int:
    return max((row.n_speed for row in report.methods.values()), default=0)


def _judged(report: Report) -> int:
    return max((row.n for row in report.methods.values() if row.quality), default=0)
