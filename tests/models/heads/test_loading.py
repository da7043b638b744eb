"""Heads by the name of a repository on the hub."""

from __future__ import annotations

import folders
import huggingface_hub
import pytest

from mmspec.errors import InputError
from mmspec.models.heads.loading import load_head


def test_a_repository_on_the_hub(tmp_path, monkeypatch):
    folder, _, _ = folders.eagle3(tmp_path / "head")
    asked = []

    def download(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    assert load_head("someone/a-head.1").method == "eagle3"
    assert asked == [("someone/a-head.1", ["*.json", "*.safetensors", "*.bin", "*.pt"])]


def test_a_repository_that_is_not_there(tmp_path, monkeypatch):
    def download(name, allow_patterns):
        raise OSError("no such repository")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"someone/none here, .* not give it: no such"):
        load_head("someone/none")
    with pytest.raises(InputError, match=r"config\.json"):
        load_head("no/such/folder")
