"""Environment of a report."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch

from mmspec.eval.environment import commit, environment

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout")
@pytest.mark.parametrize("foreign", [False, True])
def test_a_checkout_names_its_commit(foreign, monkeypatch):
    """Also where it belongs to another user, of whose folders git is wary."""
    command = ["git", "-C", str(ROOT), "rev-parse", "HEAD"]
    head = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    if foreign:
        monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
        assert subprocess.run(command, capture_output=True).returncode
    found = commit()
    assert found is not None
    assert re.fullmatch(r"[0-9a-f]{12,}(-dirty)?", found)
    assert head.startswith(found.removesuffix("-dirty"))
    assert environment(torch.device("cpu"))["commit"] == found
