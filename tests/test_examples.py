"""Every example runs as a user runs it, and prints what it promises."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples"
SPEEDUP = r"speed-up: \d+\.\d+"
# what an example prints, and the files that it leaves
PROMISED = {
    "acceptance_rule": (r"token: \d\.\d\d tokens a call\ntypical: ", ["token.png", "typical.png"]),
    "ask_about_picture": (rf"as plainly: True\n{SPEEDUP}", ["scene.png"]),
    "compare_methods": (
        r"plain: 256 calls.*\nscd: \d\d calls.*\nmulo-sd: \d+ calls .* and \d+ of its sibling",
        ["compare.png"],
    ),
    "continuous_picture": (
        rf"plain: 3200 calls.*\nreflection: \d{{3}} calls.*\n{SPEEDUP}",
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
        r"block 23: by the \w+, \d+\.\d MiB of caches\ndrafted: \d+%",
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


@pytest.mark.parametrize("name", PROMISED)
def test_example(name, tmp_path):
    script = EXAMPLES / f"{name}.py"
    assert len(script.read_text().splitlines()) <= 40
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ran = subprocess.run(
        [sys.executable, script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    printed, files = PROMISED[name]
    assert re.search(printed, ran.stdout), ran.stdout
    assert all((tmp_path / file).stat().st_size for file in files)
