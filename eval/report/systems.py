"""Systems of the field: how each is asked for here, what it promises, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, cast

from ...errors import InputError
from ...methods import Modality, SpecConfig, config_of
from ...methods.systems import SYSTEMS, System
from ..schema import MethodResult, Report
from .evidence import LEGEND, NONE, Evidence, is_of, suite_of
from .matrix import published
from .table import Table

NOT_YET = "not yet"
COLUMNS = "system", "what it is", "here", "evidence (suite, or recipe)", "its authors report"


class Ran(NamedTuple):
    """A row of a report: its configuration, its figures, its suite, and whose weights they are of.

    Attributes:
        mode: the way that its prompts are called, such as "greedy"; "": there is one.
        report: number of the report, later ones last.
        real: the model is a published checkpoint, not one that ships.
        modality: what the target makes.
    """

    config: SpecConfig
    mode: str
    row: MethodResult
    report: int
    suite: str
    real: bool
    modality: Modality

    def runs(self, wanted: SpecConfig) -> bool:
        """True if it is of this very configuration, however the two are spelled."""
        try:
            return self.config.resolve(self.modality) == wanted.resolve(self.modality)
        except InputError:  # another kind of model's
            return False


def systems(paths: Sequence[Path], tests: Path | None = None) -> str:
    """A table in Markdown with a row a system, and what its marks mean.

    The figures are of that very configuration's rows in the latest report, one for each way that
    prompts are called; where no report has them, those of the fastest row of that method. Reports
    of published checkpoints come first.

    Args:
        paths: reports; those of embedded models and of published checkpoints count.
        tests: folder of tests, which say what is enumerated; None: they aren't looked at.

    Raises:
        InputError: a path holds no report.
    """
    reports = [report for report in map(Report.read, paths) if report.for_reporting]
    reports.sort(key=lambda report: str(report.date or ""))
    rows = [
        Ran(config, mode, row, i, report.suite, report.model != "embedded", _modality(report))
        for i, report in enumerate(reports)
        if report.model == "embedded" or published(report) is not None
        for name, _, mode, row in (
            (*name.partition("@"), row) for name, row in report.methods.items()
        )
        if (config := _read(name)) is not None
    ]
    evidence = Evidence([(ran.config, ran.suite, ran.real) for ran in rows], tests)
    told = {}
    for system in SYSTEMS:
        config = configured(system)
        best = [] if config is None else _best(config, rows)
        marks, suite = evidence.of(system, config), suite_of(config)
        if best:
            marks, suite = f"{marks} {'; '.join(map(_figure, best))}", best[0].suite
        way = suite or system.measured or system.trained
        told[system.name] = (
            system.what,
            here(system),
            f"{marks} ({way})" if way else marks,
            system.reported or NONE,
        )
    table = Table.of("", COLUMNS, told, numbers=False).markdown().split("\n\n", 1)[1]
    return f"{table}\n\n{LEGEND}\n"


def _modality(report: Report) -> Modality:
    """Kind of a report's model: one of text is a vision-language model that is shown nothing."""
    return cast(Modality, "vlm" if report.pipeline == "text" else report.pipeline)


def configured(system: System) -> SpecConfig | None:
    """Configuration of a system; None: it is no method, or is not built."""
    if not system.use or system.use.startswith(("mmspec", "python")):
        return None
    return config_of(system.use)


def here(system: System) -> str:
    """The method, its settings, and its contract at temperature 1; or a call or a command."""
    config = configured(system)
    if config is None:
        return system.use.removeprefix("mmspec.") or NOT_YET
    _, _, settings = system.use.removesuffix("]").partition("[")
    told = f" with {settings.replace(',', ', ')}" if settings else ""
    return f"{config.method}{told}: {config.resolve().contract}"


def _best(wanted: SpecConfig, rows: Sequence[Ran]) -> list[Ran]:
    """The rows that a system's figures are of, one for each way that prompts are called."""
    timed = [ran for ran in rows if ran.row.speedup is not None and ran.row.role != "baseline"]
    own = [ran for ran in timed if ran.runs(wanted)]
    others = [ran for ran in timed if is_of(ran.config, wanted)]
    if own:
        first = max(own, key=lambda ran: (ran.real, ran.report))
    elif others:
        first = max(others, key=lambda ran: (ran.real, ran.row.speedup or 0.0))
    else:
        return []
    return [ran for ran in timed if (ran.report, ran.config) == (first.report, first.config)]


def _figure(ran: Ran) -> str:
    """Speed-up and tokens a call."""
    told, calls = f"{ran.mode} {ran.row.speedup:.2f}×".lstrip(), ran.row.mean_acceptance_length
    return told + (f", {calls:.1f} tokens a call" if calls > 1 else "")


def _read(name: str) -> SpecConfig | None:
    """The configuration of a row's name; None: it is a peer's, or a way to call."""
    try:
        return config_of(name)
    except InputError:
        return None
