"""A tiny language model of random weights in a folder."""

from __future__ import annotations

import shutil

import pytest
import texts

LAYERS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny Llama of random weights with a chat template."""
    path = tmp_path_factory.mktemp("text")
    words = texts.tokenizer()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "LAYERS", LAYERS)
        texts.model(words).float().save_pretrained(path)
    words.save_pretrained(path)
    return path


@pytest.fixture
def own(folder, tmp_path):
    return shutil.copytree(folder, tmp_path / "text")
