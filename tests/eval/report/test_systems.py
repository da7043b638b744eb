"""The page of systems: every name is one that runs, and every figure stands in a report."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import mmspec
from benchmarks.__main__ import build_parser as benchmarks
from mmspec.cli.main import build_parser
from mmspec.eval.report.systems import NOT_YET, configured, systems
from mmspec.eval.schema import Report
from mmspec.methods import config_of, presets
from mmspec.methods.systems import SYSTEMS
from mmspec.train.heads.objectives import OBJECTIVES

ROOT = Path(__file__).parents[3]
REPORTS = sorted(ROOT.glob("assets/reports/*/report.json"))
USES = {system.name: system for system in SYSTEMS}


def test_names_are_said_once():
    assert len(USES) == len(SYSTEMS) > 50


@pytest.mark.parametrize("system", SYSTEMS, ids=lambda system: system.name)
def test_what_is_named_is_there(system):
    """A method resolves, a command's options are known, a name of the package exists."""
    if not system.use:
        return
    if system.use.startswith("mmspec "):
        words = shlex.split(system.use)[1:]
        if words[0] == "eval":
            words += ["-o", "report"]
        args = build_parser().parse_args(words)
        assert getattr(args, "objective", None) in (None, *OBJECTIVES)
    elif system.use.startswith("python -m benchmarks "):
        benchmarks().parse_args([*shlex.split(system.use)[3:], "-o", "out"])
    elif system.use.startswith("mmspec."):
        assert hasattr(mmspec, re.match(r"mmspec\.(\w+)", system.use)[1])
    else:
        assert config_of(system.use).method in presets()


def test_every_method_is_a_systems():
    """But for baselines, sceptics' rows, formats of files, and what is our own."""
    named = {config.method for system in SYSTEMS if (config := configured(system))}
    own = {"draft", "prompt-lookup", "eagle", "eagle3", "medusa", "mtp", "peagle", "dflash"}
    own |= {"dspark", "domino", "specqd", "scd-gumbel", "scd-refined", "sjd-pac-refined"}
    own |= {"gamma-maximal", "gaussian-block", "reflection", "sdvg-adaptive", "cspd-independent"}
    methods = {name for name, one in presets().items() if one.role == "method"}
    assert methods - named - own == set()


def test_figures_stand_in_reports():
    table = systems(REPORTS)
    speeds = {
        f"{row.speedup_median:.2f}×"
        for path in REPORTS
        for row in Report.read(path).methods.values()
        if row.speedup_median is not None
    }
    lines = [line.split(" | ") for line in table.splitlines()[2:]]
    assert len(lines) == len(SYSTEMS)
    told = [line[3].split(",")[0] for line in lines if line[3] != "–"]
    assert len(told) > 10
    assert set(told) <= speeds
    assert sum(NOT_YET in line[2] for line in lines) == sum(not s.use for s in SYSTEMS)
    image = Report.read(ROOT / "assets/reports/image").methods
    scd = next(line for line in lines if line[0] == "| SCD")
    assert scd[2] == "scd: exact"
    assert scd[3].startswith(f"{image['scd'].speedup_median:.2f}×")
