"""Saved models that remember their GGUF file: as long as weights and file are the same."""

from __future__ import annotations

import json

import gguf_files
import pytest
import texts
import torch

from mmspec.eval.modalities.text import llama_cpp
from mmspec.eval.report import matrix
from mmspec.eval.schema import MethodResult, Report
from mmspec.models.origins import FIELD, origin_of
from mmspec.models.packaged import PACKAGED, checkpoint_of
from mmspec.pipelines.text.pipeline import TextPipeline


@pytest.fixture
def file(tmp_path):
    words = texts.tokenizer()
    return gguf_files.write_gguf(tmp_path / "tiny.gguf", texts.model(words).float(), words)


@pytest.fixture
def package(monkeypatch, tmp_path):
    """The packaged model, whose file is a tiny one's."""
    monkeypatch.setenv("MMSPEC_CACHE", str(tmp_path / "cache"))
    model = PACKAGED["smollm2"]
    home = tmp_path / "site" / model.package
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("")
    words = texts.tokenizer()
    gguf_files.write_gguf(home / model.file, texts.model(words).float(), words)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    return home / model.file


def saved(pipe: TextPipeline, folder):
    pipe.save_pretrained(folder)
    return folder


def test_a_folder_knows_the_file_through_copies_of_copies(file, tmp_path):
    first = saved(TextPipeline.from_pretrained(file), tmp_path / "first")
    assert isinstance(json.loads((first / "config.json").read_text())[FIELD], dict)
    small = texts.model(texts.tokenizer(), seed=1)
    pipe = TextPipeline.from_pretrained(first, drafter=small)
    second = saved(pipe, tmp_path / "second")
    assert origin_of(second).file == str(file)
    assert llama_cpp._file_of(str(second)) == file
    assert checkpoint_of(str(second)) is None  # nobody published it


def test_trained_weights_are_others(file, tmp_path):
    pipe = TextPipeline.from_pretrained(file)
    with torch.no_grad():
        next(pipe.model.parameters())[0, 0] += 1
    folder = saved(pipe, tmp_path / "trained")
    assert FIELD in json.loads((folder / "config.json").read_text())
    assert origin_of(folder) is None
    assert llama_cpp._file_of(str(folder)) == folder


def test_another_file_in_its_place_is_not_it(file, tmp_path):
    folder = saved(TextPipeline.from_pretrained(file), tmp_path / "model")
    assert origin_of(folder) is not None
    file.write_bytes(file.read_bytes() + b"\0")
    assert origin_of(folder) is None
    file.unlink()
    assert origin_of(folder) is None


def test_a_folder_saved_from_a_package_is_its_checkpoint(package, tmp_path):
    folder = saved(TextPipeline.from_pretrained("smollm2"), tmp_path / "mine")
    assert checkpoint_of(str(folder)) == checkpoint_of("smollm2") == "smollm2"
    assert llama_cpp._file_of(str(folder)) == package
    row = MethodResult("exact", 1, 1.0, 1.0, 1.0, [], {})
    report = Report("s", "text", str(folder), "c", {}, {}, None, {}, {"scd": row})
    assert matrix.published(report) is None
    report.checkpoint = checkpoint_of(report.model)
    assert matrix.published(report) == "smollm2"
    # a name alone is no proof
    told = json.loads((folder / "config.json").read_text())
    told[FIELD]["state"] = "0" * 64
    (folder / "config.json").write_text(json.dumps(told))
    assert checkpoint_of(str(folder)) is None
