"""The mutation check itself: which faults it makes, where, and that the checkout stays as it is."""

from __future__ import annotations

import ast
import subprocess
import sys
import time

import pytest
from mutants import EQUIVALENT, ROOT, TESTS, Run, drawn, main, perform, report
from mutation import mutants, sample


def faults(line: str) -> set[str]:
    """What becomes of one line of a function."""
    text = f'"""é."""\n\n\ndef f(x, y):\n    """Says 1 + 1."""\n    {line}\n'
    found = mutants("file.py", text)
    for mutant in found:
        assert mutant.line == 6
        assert mutant.before == line
        ast.parse(mutant.source(text))
        assert mutant.source(text) == text.replace(line, mutant.after)
    return {mutant.after for mutant in found}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("return x < y", ["return (x <= y)"]),
        ("return x is not y", ["return (x is y)"]),
        ("return 'é' + x", ["return ('é' - x)"]),
        ("return x // y", ["return (x * y)"]),
        ("return x & y", ["return (x | y)"]),
        ("return x and y", ["return (x or y)"]),
        ("return not x", ["return (x)"]),
        ("return 3", ["return (4)"]),
        ("return 0.5", ["return (1.0)"]),
        ("return 0.0", ["return (1.0)"]),
        ("return True", ["return (False)"]),
        ("return x.amin(y)", ["return (x.amax(y))"]),
        ("return max(x, y)", ["return (min(x, y))"]),
        ("return g(x, y)", ["return (g(y, x))"]),
        ("return g(x, y.z)", []),
        ("return torch.where(x, y.a, y.b)", ["return (torch.where(x, y.b, y.a))"]),
        ("return isinstance(x, int | str)", []),
        ("x.append(y)", ["pass"]),
        ("x = g(x)", ["pass"]),
        ("x = g(y)", []),
        ("self.x = y", ["pass"]),
        ("x += y", ["pass"]),
        ("raise ValueError(1 + 1)", []),
        ("assert x > 1", []),
        ("x: list[int] = y", []),
        ("return f'{x + y}'", []),
    ],
)
def test_operators(line, expected):
    assert faults(line) == set(expected)


def test_only_functions_with_a_body_are_changed():
    text = "A = 1\n\n\nclass B:\n    c = 2\n\n    def d(self):\n        '''Adds 1 + 1.'''\n"
    assert mutants("file.py", text) == []


def test_over_several_lines():
    text = "def f(x):\n    return g(\n        x\n        < 1,\n    )\n"
    (border, constant) = mutants("file.py", text)
    assert border.source(text) == "def f(x):\n    return g(\n        (x <= 1),\n    )\n"
    assert (border.before, border.after) == ("x < 1", "(x <= 1)")
    assert constant.line == 4


def test_a_change_elsewhere_leaves_the_lot_as_it_was():
    def text(name: str) -> str:
        return "def f(x):\n" + "".join(f"    x[{n}] += {name if n == 3 else n}\n" for n in range(9))

    before, after = (sample(mutants("a.py", text(name)), 5, "s") for name in ("x", "longer"))
    assert len(before) == 5
    kept = {m.key for m in before if "x[3]" not in m.before}
    assert len(kept) >= 3
    assert len(kept - {m.key for m in after}) <= 1  # a new one may take the place of the last


def test_all_that_are_drawn():
    runs = list(drawn([]))
    assert len(runs) >= 100
    assert len({run.file for run in runs}) == len(TESTS)
    for run in runs:
        text = (ROOT / run.file).read_text(encoding="utf-8")
        ast.parse(run.mutant.source(text))
        assert run.mutant.source(text) != text
        assert run.mutant.key not in EQUIVALENT
        assert all((ROOT / test).is_file() for test in run.tests)
    assert [run.mutant for run in runs] == [run.mutant for run in drawn([])]
    assert {run.file for run in drawn(["warp"])} == {"mmspec/engine/warp.py"}


def test_every_rule_is_among_them():
    folder = ROOT / "mmspec/engine/accept"
    others = {"__init__", "islands", "unverified"}  # twins are what rules are compared with
    files = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.py")}
    rules = {name for name in files - others if not name.endswith(("naive", "__init__"))}
    names = {name.removeprefix("engine/accept/") for name in TESTS}
    assert rules == names & files


def test_known_ones_are_those_of_today():
    """A line that has changed has no excuse any more."""
    files = {key.split(": ")[0] for key in EQUIVALENT}
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in files}
    every = {m.key for file, text in texts.items() for m in mutants(file, text)}
    assert set(EQUIVALENT) <= every


def test_outcomes_and_their_table(capsys):
    """Found, not found, and without an end; two at a time."""

    def work(run: Run) -> None:
        if run.file == "c":
            time.sleep(60)
        sys.exit({"a": 1, "b": 0}[run.file])

    runs = [Run(name, [], limit=1.0 if name == "c" else 60.0) for name in "abc"]
    done = {run.file: run.outcome for run in perform(runs, 2, work)}
    assert done == {"a": "killed", "b": "survived", "c": "hangs"}
    assert report(runs) == 1
    assert "2 of 3 killed, 66.7%" in capsys.readouterr().out
    assert report(runs[::2]) == 0


def test_a_process_reads_the_fault_and_the_file_stays():
    file = ROOT / "mmspec/registry.py"
    text = file.read_text(encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from mutants import ROOT, read_as\n"
        "file = ROOT / 'mmspec/registry.py'\n"
        "read_as(file, file.read_text(encoding='utf-8') + '\\nFAULT = 1\\n')\n"
        "import mmspec.registry, mmspec.errors\n"
        "assert mmspec.registry.FAULT == 1 and not hasattr(mmspec.errors, 'FAULT')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert file.read_text(encoding="utf-8") == text


def test_names_only(capsys):
    assert main(["--list", "engine/warp"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == TESTS["engine/warp"][1]
    assert all(line.startswith("mmspec/engine/warp.py: ") and " -> " in line for line in lines)
