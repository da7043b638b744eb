"""Systems of the field: how each is asked for here, what it promises, and what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...methods import SpecConfig, config_of
from ...methods.systems import SYSTEMS, System
from ..schema import MethodResult, Report
from .table import Table

NOT_YET, NONE = "not yet", "–"
COLUMNS = ("system", "what it is", "here", "measured here", "its authors report")


def systems(paths: Sequence[Path]) -> str:
    """A table in Markdown with a row a system.

    The figure is of the latest report's row of that very configuration; where none has one, of the
    fastest row of that method.

    Args:
        paths: reports; the embedded models' alone count.

    Raises:
        InputError: a path holds no report.
    """
    reports = [report for report in map(Report.read, paths) if report.for_reporting]
    reports.sort(key=lambda report: str(report.date or ""))
    rows = [row for r in reports if r.model == "embedded" for row in r.methods.items()]
    told = {
        system.name: (
            system.what,
            here(system),
            _measured(system, rows),
            system.reported or NONE,
        )
        for system in SYSTEMS
    }
    return Table.of("", COLUMNS, told, numbers=False).markdown().split("\n\n", 1)[1] + "\n"


def configured(system: System) -> SpecConfig | None:
    """Configuration of a system; None: it is no method, or is not built."""
    if not system.use or system.use.startswith(("mmspec", "python")):
        return None
    return config_of(system.use)


def here(system: System) -> str:
    """The method, its settings, and its contract at temperature 1; or the command, or the call."""
    config = configured(system)
    if config is None:
        return system.use or NOT_YET
    _, _, settings = system.use.removesuffix("]").partition("[")
    told = f" with {settings.replace(',', ', ')}" if settings else ""
    return f"{config.method}{told}: {config.resolve().contract}"


def _measured(system: System, rows: Sequence[tuple[str, MethodResult]]) -> str:
    """Speed-up and tokens a call."""
    wanted = configured(system)
    if wanted is None:
        return NONE
    own: list[MethodResult] = []
    others: list[MethodResult] = []
    for name, row in rows:
        config = _read(name.split("@")[0])
        if config is None or row.speedup_median is None or config.method != wanted.method:
            continue
        if config == wanted:
            own.append(row)
        elif _given(wanted).items() <= _given(config).items():
            others.append(row)
    if not own and not others:
        return NONE
    best = own[-1] if own else max(others, key=lambda row: row.speedup_median or 0.0)
    calls = best.mean_acceptance_length
    return f"{best.speedup_median:.2f}×" + (f", {calls:.1f} tokens a call" if calls > 1 else "")


def _given(config: SpecConfig) -> dict[str, Any]:
    """Parts and options that a configuration names."""
    return {name: value for name, value in config.to_dict().items() if name != "method"}


def _read(name: str) -> SpecConfig | None:
    """The configuration of a row's name; None: it is a peer's, or a way to call."""
    try:
        return config_of(name)
    except InputError:
        return None
