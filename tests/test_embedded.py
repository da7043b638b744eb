"""Every embedded model as it is shipped: small, documented, and what the cards say it is."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mmspec.models.embedded import MODELS, embedded_folder

MEGABYTE = 10**6
SUFFIXES = {".json", ".safetensors", ".md", ".jinja"}
FOLDERS = sorted(path for path in MODELS.rglob("*") if any(path.glob("*.safetensors")))
TAUGHT_ALONG = "text_encoder"  # with a network whose card says so


def test_files_fit_into_a_wheel():
    sizes = {path: path.stat().st_size for path in MODELS.rglob("*") if path.is_file()}
    assert max(sizes.values()) <= 16 * MEGABYTE
    assert sum(sizes.values()) <= 95 * MEGABYTE
    assert {path.suffix for path in sizes} <= SUFFIXES


def test_all_are_looked_at():
    models = {path.relative_to(MODELS).parts[0] for path in FOLDERS}
    assert models == {path.name for path in MODELS.iterdir()}
    assert {"clip", "image", "mar", "video", "vlm"} <= models


@pytest.mark.parametrize(
    "folder",
    [path for path in FOLDERS if path.name != TAUGHT_ALONG],
    ids=lambda path: str(path.relative_to(MODELS)),
)
def test_networks_are_documented(folder: Path):
    record = json.loads((folder / "training.json").read_text())
    assert record["step"] > 0
    assert record["minutes"] > 0
    assert record["held_out"]
    assert all(math.isfinite(value) for value in record["held_out"].values())
    card = (folder / "README.md").read_text()
    for word in ("data:", "steps", "minutes", "Held-out", "Not good for"):
        assert word in card


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(MODELS)))
def test_weights_are_in_half_precision_where_they_are_read(folder: Path):
    model, *rest = folder.relative_to(MODELS).parts
    for path in embedded_folder(model).joinpath(*rest).glob("*.safetensors"):
        dtypes = {value.dtype for value in load_file(path).values()}
        assert {dtype for dtype in dtypes if dtype.is_floating_point} == {torch.float16}
