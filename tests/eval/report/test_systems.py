"""The page of systems: every name is one that runs, and every figure stands in a report."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import mmspec
from benchmarks.__main__ import build_parser as benchmarks
from mmspec.cli.main import build_parser, trained
from mmspec.eval.report import matrix
from mmspec.eval.report.evidence import ENUMERATED, SIMULATED, STORED, Evidence
from mmspec.eval.report.systems import NOT_YET, configured, systems
from mmspec.eval.schema import Report
from mmspec.eval.suite import load_suite
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
    """A method resolves, commands take their options, a name of the package exists."""
    if system.trained:
        words = [*shlex.split(system.trained)[1:], "--pipeline", "folder"]
        assert trained(build_parser().parse_args(words))
    if not system.use:
        return
    if system.use.startswith("mmspec "):
        words = shlex.split(system.use)[1:]
        if words[0] == "eval":
            words += ["-o", "report"]
        args = build_parser().parse_args(words)
        if words[0] == "train":
            assert trained(args).get("objective") in (None, *OBJECTIVES)
    elif system.use.startswith("python -m benchmarks "):
        folder = ["-o", "out"]  # of those that write one
        _, left = benchmarks().parse_known_args([*shlex.split(system.use)[3:], *folder])
        assert left in ([], folder)
    elif system.use.startswith("mmspec."):
        assert hasattr(mmspec, re.match(r"mmspec\.(\w+)", system.use)[1])
    else:
        assert config_of(system.use).method in presets()


def test_every_method_is_a_systems():
    """But for baselines, sceptics' rows, formats of files, and what is our own."""
    named = {config.method for system in SYSTEMS if (config := configured(system))}
    own = {"draft", "prompt-lookup", "eagle", "eagle3", "medusa", "mtp", "peagle", "dflash"}
    own |= {
        "deer-tree",
        "maskgit-rows",
        "dspark",
        "domino",
        "specqd",
        "scd-dflash",
        "scd-gumbel",
        "scd-refined",
        "sjd-pac-refined",
        "spatial-exact",
    }
    own |= {"gamma-maximal", "gaussian-block", "reflection", "sdvg-adaptive", "cspd-independent"}
    methods = {name for name, one in presets().items() if one.role == "method"}
    assert methods - named - own == set()


def test_figures_stand_in_reports():
    table = systems(REPORTS, ROOT / "tests")
    speeds = {
        f"{row.speedup:.2f}×"
        for path in REPORTS
        for row in Report.read(path).methods.values()
        if row.speedup is not None
    }
    lines = [x.split(" | ") for x in table.split("\n\n")[0].splitlines()[2:]]
    assert len(lines) == len(SYSTEMS)
    told = [found[0] for line in lines if (found := re.search(r"\d+\.\d\d×", line[3]))]
    assert len(told) > 10
    assert set(told) <= speeds
    assert sum(NOT_YET in line[2] for line in lines) == sum(not s.use for s in SYSTEMS)
    image = Report.read(ROOT / "assets/reports/image").methods
    scd = next(line for line in lines if line[0] == "| SCD")
    assert scd[2] == "scd: exact"
    speed = f"{image['scd'].speedup:.2f}×"
    assert scd[3].startswith(f"{matrix.MEASURED} {ENUMERATED} {speed}")
    assert scd[3].endswith(" (shapes-full)")


def test_a_figure_is_of_the_very_configuration():
    """However its row is spelled, and of all clips together."""
    table = systems(REPORTS, ROOT / "tests")
    (line,) = (line for line in table.splitlines() if line.startswith("| SDVG |"))
    row = Report.read(ROOT / "assets/reports/video").methods["sdvg[tau=32]"]
    assert f" {row.speedup:.2f}× (sdvg)" in line


def test_texts_have_a_figure_for_each_way_that_they_are_drawn():
    """Those of a published checkpoint, though embedded models have rows of the method, too."""
    table = systems(REPORTS, ROOT / "tests")
    (line,) = (line for line in table.splitlines() if line.startswith("| Token Recycling |"))
    rows = Report.read(ROOT / "assets/reports/spec-bench").methods
    greedy, sampled = (rows[f"token-recycling@{mode}"].speedup for mode in ("greedy", "sampled"))
    assert f" greedy {greedy:.2f}×" in line
    assert f"; sampled {sampled:.2f}×" in line
    assert "(spec-bench)" in line
    (line,) = (line for line in table.splitlines() if line.startswith("| SWIFT |"))
    assert ENUMERATED in line  # a function makes its drafter, whose class a test enumerates


def test_commands_are_taken():
    """Each that is told parses, and a suite is of the method's own kind."""
    table = systems(REPORTS, ROOT / "tests")
    lines = [line.split(" | ") for line in table.split("\n\n")[0].splitlines()[2:]]
    suites = {line[0].removeprefix("| "): re.search(r"\((\S+)\)$", line[3]) for line in lines}
    assert sum(suite is not None for suite in suites.values()) > 40
    for system in SYSTEMS:
        recipe = system.trained.replace("_", r"\_")
        assert not recipe or f"({recipe})" in table
        words, suite = shlex.split(system.use), suites[system.name]
        if words[0] == "mmspec":
            out = ["-o", "report"] if words[1] == "eval" else []
            build_parser().parse_args([*words[1:], *out])
        if suite is not None and suite[1] != system.measured:
            kind = load_suite(suite[1]).pipeline
            configured(system).resolve("vlm" if kind == "text" else kind)


def test_figures_of_benchmarks_are_stored():
    """The table names their page, and the page's record is there."""
    table = systems(REPORTS, ROOT / "tests")
    named = [system for system in SYSTEMS if system.measured]
    assert named
    for system in named:
        (line,) = (line for line in table.splitlines() if line.startswith(f"| {system.name} |"))
        assert f"({system.measured})" in line
        assert f" {STORED} " in line or f" {SIMULATED} " in line
        assert len([*(ROOT / "assets/reports" / system.measured).glob("*.json")]) == 1


def test_evidence_is_of_tests_that_enumerate(tmp_path):
    def named(system: str) -> str:  # not written here, or this would be such a test
        config = configured(USES[system]).resolve("image")
        return " ".join(p.reference.split(":")[1] for p in (config.drafter, config.rule))

    (tmp_path / "test_it.py").write_text(f"from toys import EXACT\n{named('Token Recycling')}\n")
    (tmp_path / "test_other.py").write_text(named("SCD"))
    evidence = Evidence([], tmp_path)
    marks = {n: evidence.of(USES[n], configured(USES[n])) for n in ("Token Recycling", "SCD")}
    assert marks == {"Token Recycling": ENUMERATED, "SCD": matrix.TRAINED}
    assert evidence.of(USES["Mirror-SD"], None) == SIMULATED
    # a row of the method with other settings is no evidence of these
    ran = [(config_of("draft[num_draft_tokens=5]"), "vlm", True)]
    evidence = Evidence(ran, None)
    assert evidence.of(USES["SpecPC"], configured(USES["SpecPC"])) == matrix.TRAINED
    ran.append((config_of("draft[target_compressor=draft-attention,num_draft_tokens=5]"), "", True))
    assert evidence.of(USES["SpecPC"], configured(USES["SpecPC"])) == matrix.REAL
