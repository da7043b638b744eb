"""Every example runs as a user runs it, and prints what it promises.

Those that take long are forked from a process that has imported what all of them do.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import nbclient
import nbformat
import pytest
from forked import command, printed, script

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SPEEDUP = r"speed-up: \d+\.\d+"
# what an example prints, and the files that it leaves
PROMISED = {
    "acceptance_rule": (r"token: \d\.\d\d tokens a call\ntypical: ", ["token.png", "typical.png"]),
    "ask_about_picture": (rf"as plainly: True\n{SPEEDUP}", ["scene.png"]),
    "compare_methods": (
        r"plain: 256 calls.*\nscd: [12]?\d\d calls.*\nmulo-sd: \d+ calls .* and \d+ of its sibling",
        ["compare.png"],
    ),
    "continuous_picture": (
        rf"plain: 3200 calls.*\nreflection: \d+ calls.*\n{SPEEDUP}",
        ["plain.png", "reflection.png"],
    ),
    "draw_picture": (SPEEDUP, ["plain.png", "scd.png"]),
    "make_clip": (
        rf"plain: 0 of 12 blocks drafted.*\nsdvg: [1-9]\d* of 12 blocks drafted.*\n{SPEEDUP}",
        ["plain.gif", "sdvg.gif"],
    ),
    "run_evaluation": (r"scd exact speed-up \d", ["report/report.html"]),
    "speculate_transformers": ("the same tokens: True", []),
    "stream_video": (
        # the window is full behind block 8
        r"block 8: .*, (\d+\.\d) MiB [\s\S]*\nblock 23: .*, \1 MiB .*\ndrafted: [1-9]\d*%",
        ["clip.gif"],
    ),
    "train_drafter": (r"tokens a call after 20 steps", ["my-pipeline/drafter/README.md"]),
}


def test_no_example_is_left_out():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == set(PROMISED)
    page = (EXAMPLES / "README.md").read_text()
    for name, (_, files) in PROMISED.items():
        (row,) = (line for line in page.splitlines() if f"]({name}.py)" in line)
        assert all(file.split("/")[0] in row for file in files)


QUICK = ("ask_about_picture", "draw_picture")  # the rest takes long


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.slow) for n in PROMISED]
)
def test_example(name, tmp_path):
    path = EXAMPLES / f"{name}.py"
    assert len(path.read_text().splitlines()) <= 40
    said = alone(path, tmp_path) if name in QUICK else printed(tmp_path, script, str(path))
    promised, files = PROMISED[name]
    assert re.search(promised, said), said
    assert all((tmp_path / file).stat().st_size for file in files)
    if name == "train_drafter":  # its own, not the one that the folder was copied with
        assert "20 of 20 steps" in (tmp_path / files[0]).read_text()


def alone(path: Path, cwd: Path) -> str:
    """What a script prints in a process that has imported nothing yet."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, path], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.slow
def test_the_evaluation_of_a_rule_of_your_own(tmp_path):
    """The command that the example's docstring names, on one sample."""
    module = ast.parse((EXAMPLES / "acceptance_rule.py").read_text())
    text = " ".join(ast.get_docstring(module).split())
    (typed,) = re.findall(r"`PYTHONPATH=examples mmspec (eval run [^`]*)`", text)
    said = printed(tmp_path, command, [*shlex.split(typed), "--limit", "1"], str(EXAMPLES))
    assert "draft[rule=acceptance_rule:TypicalRule]" in said


def test_the_notebook_runs_and_holds_no_outputs(tmp_path):
    """As `jupyter` runs it; outputs in the file would be a diff at every run."""
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert not any(cell.outputs or cell.execution_count for cell in cells)
    client = nbclient.NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    said = [
        "".join(one.text for one in cell.outputs if one.get("name") == "stdout") for cell in cells
    ]
    assert re.search(r"plain: 256 calls.*\nscd: [12]?\d\d calls, contract exact", said[0])
    assert re.search(r"plain: \d+ calls.*\neagle: \d+ calls", said[1])
    assert re.search(r"\d+ calls for 40 tokens", said[2])
