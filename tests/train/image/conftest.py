"""Folders that recipes of pictures train in."""

from __future__ import annotations

import shutil

import pytest


@pytest.fixture(scope="module")
def folder(tiny_folder, tmp_path_factory):
    """A pipeline of random weights, 4×4 tokens, that is the recipe's own."""
    copied = tmp_path_factory.mktemp("head") / "image"
    shutil.copytree(tiny_folder, copied)
    return copied
