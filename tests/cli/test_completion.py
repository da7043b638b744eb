"""Completion, as a shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmspec.cli.main import main
from mmspec.methods import serving

ROOT = Path(__file__).resolve().parents[2]


def completed(line: str, tmp_path) -> set[str]:
    """What the command says may stand at the end of a line."""
    out = tmp_path / "said"
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(out),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    code = "from mmspec.cli.main import main; main()"
    subprocess.run([sys.executable, "-c", code], env={**os.environ, **asked}, check=True)
    return {word.strip() for word in out.read_text().split("\013")}


def test_commands_options_and_methods(tmp_path):
    assert {"generate", "ask", "serve", "completion"} <= completed("mmspec ", tmp_path)
    assert {"--method", "--compare", "--seed"} <= completed("mmspec generate x --", tmp_path)
    assert "spatial-sd" in completed("mmspec generate x --method sp", tmp_path)
    named = completed("mmspec ask a b --method ", tmp_path)
    assert set(serving("vlm")) <= named


def test_bash_completes_a_line_by_it(capsys, tmp_path):
    """What Tab runs; the command is found as in a user's shell."""
    assert main(["completion", "bash"]) == 0
    command = tmp_path / "mmspec"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m mmspec "$@"\n')
    command.chmod(0o755)
    line = "mmspec generate x --method spatial-"
    script = f"""{capsys.readouterr().out}
    complete -p mmspec
    COMP_LINE='{line}' COMP_POINT={len(line)} COMP_TYPE=9
    _python_argcomplete mmspec
    printf '%s\\n' "${{COMPREPLY[@]}}"
    """
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    told = subprocess.check_output(["bash", "-c", script], env=environment, text=True).split("\n")
    assert told[0].endswith("-F _python_argcomplete mmspec")
    assert {"spatial-sd", "spatial-exact"} <= {word.strip() for word in told[1:]}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_code(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "mmspec" in capsys.readouterr().out
