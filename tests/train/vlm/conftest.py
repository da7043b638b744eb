"""Folders that several recipes of this room start from."""

from __future__ import annotations

import pytest
from small_llava import save_small_llava


@pytest.fixture
def pair(tmp_path):
    """A tiny model with another one as its drafter."""
    out = tmp_path / "vlm"
    save_small_llava(out)
    save_small_llava(out / "drafter", seed=3)
    return out
