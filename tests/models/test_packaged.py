"""Checkpoints that come as packages: found without an import, unpacked once, told of if missing."""

from __future__ import annotations

import sys

import gguf_files
import pytest
import texts

from mmspec.errors import InputError
from mmspec.models import packaged
from mmspec.models.eight_bit import pack_folder
from mmspec.models.heads.formats.new import medusa
from mmspec.models.heads.formats.new_head import NewHead
from mmspec.models.packaged import PACKAGED, checkpoint_of, packaged_folder
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


def test_heads_that_ship_for_it_come_with_it(package, monkeypatch, tmp_path):
    monkeypatch.setattr(packaged, "MODELS", tmp_path / "models")
    before = packaged_folder("smollm2")
    plain = TextPipeline.from_pretrained("smollm2")
    medusa(NewHead(plain.model), heads=2).save_pretrained(tmp_path / "medusa")
    pack_folder(tmp_path / "medusa", tmp_path / "models/smollm2/heads/medusa")
    pipe = TextPipeline.from_pretrained("smollm2")
    assert packaged_folder("smollm2") != before
    pipe.enable_speculation("medusa")
    out = pipe("the cat", max_new_tokens=12)
    assert out.text == plain("the cat", max_new_tokens=12).text
    assert sum(out.stats.drafted) > 0
    assert checkpoint_of(str(packaged_folder("smollm2"))) == "smollm2"


def test_a_damaged_file_leaves_nothing(package, cache):
    package.write_bytes(package.read_bytes()[:2000])
    with pytest.raises(InputError, match="can't read"):
        packaged_folder("smollm2")
    assert list(cache.iterdir()) == []


def test_it_is_not_installed(cache, monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"is not installed: pip install 'mmspec\[smollm2\]'"):
        packaged_folder("smollm2")
