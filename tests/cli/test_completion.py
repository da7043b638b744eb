"""Completion, as a shell asks for it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from mmspec.cli.main import main
from mmspec.methods import serving


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


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_has_its_code(shell, capsys):
    assert main(["completion", shell]) == 0
    assert "mmspec" in capsys.readouterr().out
