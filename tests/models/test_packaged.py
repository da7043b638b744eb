"""Checkpoints that come as packages: found without an import, unpacked once, told of if missing."""

from __future__ import annotations

import sys

import gguf_files
import pytest
import texts

from mmspec.errors import InputError
from mmspec.models import packaged
from mmspec.models.packaged import PACKAGED, packaged_folder
from mmspec.pipelines.text.pipeline import TextPipeline


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def package(monkeypatch, tmp_path, cache):
    """A package that holds a tiny model in the place of the real one, and can't be imported."""
    model = PACKAGED["smollm2"]
    home = tmp_path / "site" / model.package
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise ImportError('needs what is not installed')\n")
    words = texts.tokenizer()
    gguf_files.write_gguf(home / model.file, texts.model(words).float(), words)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, model.package, raising=False)
    return home / model.file


def test_it_opens_by_name_and_is_unpacked_once(package, cache, monkeypatch):
    pipe = TextPipeline.from_pretrained("smollm2")
    assert pipe.model.config.hidden_size == texts.WIDTH
    (folder,) = cache.iterdir()
    assert packaged_folder("smollm2") == folder
    monkeypatch.setattr(packaged, "made_once", lambda name, digest, make: (name, digest))
    before = packaged_folder("smollm2")
    package.write_bytes(package.read_bytes() + b"\0")
    assert packaged_folder("smollm2") != before  # another file is another copy


def test_a_damaged_file_leaves_nothing(package, cache):
    package.write_bytes(package.read_bytes()[:2000])
    with pytest.raises(InputError, match="can't read"):
        packaged_folder("smollm2")
    assert list(cache.iterdir()) == []


def test_it_is_not_installed(cache, monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"is not installed: pip install 'mmspec\[smollm2\]'"):
        packaged_folder("smollm2")
