"""Tokenizers of folders that bring code along: it is neither run nor asked about."""

from __future__ import annotations

import json

import pytest
import texts
import torch
from transformers import AutoProcessor, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM
from transformers.models.auto import tokenization_auto

from mmspec.errors import InputError
from mmspec.models.loading import load_component
from mmspec.models.transformers.text_folder import load_text

CODE = """
from pathlib import Path

(Path(__file__).parent / "ran").touch()
Path({marker!r}).touch()
class Own: ...
"""


@pytest.fixture
def words():
    return texts.tokenizer()


@pytest.fixture
def folder(tmp_path, words, monkeypatch):
    """A masked model as it is published, its code beside it; who is asked says yes."""
    small = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4)
    config = Qwen2Config(**small, num_key_value_heads=2, vocab_size=len(words) + 1)
    folder = tmp_path / "published"
    Qwen2ForCausalLM(config).save_pretrained(folder)
    words.save_pretrained(folder)
    told = {"model_type": "Dream", "mask_token_id": len(words)}
    add(folder / "config.json", {**told, "auto_map": {"AutoConfig": "own.Own"}})
    add(folder / "tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["own.Own", None]}})
    (folder / "own.py").write_text(CODE.format(marker=str(tmp_path / "ran")))
    monkeypatch.setattr("builtins.input", lambda text: "y")
    yield folder
    assert not (tmp_path / "ran").exists()


def add(file, more) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **more}))


def test_its_words_are_read_and_its_code_is_not_run(folder, words):
    found = load_text(folder, torch.float32, masked="drafts")["tokenizer"]
    for text in (texts.TEXT, "<|im_start|>user\nhi<|im_end|>"):
        assert found(text)["input_ids"] == words(text)["input_ids"]
    assert found.chat_template == words.chat_template
    assert found.eos_token_id == words.eos_token_id


def test_words_that_are_code_alone_are_those_of_the_family(folder, monkeypatch):
    (folder / "tokenizer.json").unlink()
    asked = []
    monkeypatch.setattr(
        AutoTokenizer, "from_pretrained", lambda *where, **told: asked.append((where, told))
    )
    load_text(folder, torch.float32, ["tokenizer"], masked="drafts")
    assert asked == [((folder,), {"tokenizer_type": "qwen2", "trust_remote_code": False})]


def test_words_that_are_code_alone_are_refused(folder):
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"is code of its own, which is not run; save it as tok"):
        load_component(AutoTokenizer, folder, torch.float32)


def test_a_processor_that_is_code_is_refused(folder):
    (folder / "processor_config.json").write_text('{"auto_map": {"AutoProcessor": "own.Own"}}')
    with pytest.raises(InputError, match="can't load"):
        load_component(AutoProcessor, folder, torch.float32)


def test_words_of_mistral_are_those_with_a_chat_template(tmp_path, words, monkeypatch):
    """Where mistral-common is installed, too, which reads `tekken.json` and has none."""
    words.save_pretrained(tmp_path)
    (tmp_path / "tekken.json").write_text("{}")
    (tmp_path / "config.json").write_text('{"model_type": "mistral"}')
    names = tokenization_auto.TOKENIZER_MAPPING_NAMES  # as they are where it is installed
    monkeypatch.setitem(names, "mistral", "MistralCommonBackend")
    asked = []

    def format_of(*where, mistral_format=None, **told):
        asked.append(mistral_format)
        return mistral_format is not False

    monkeypatch.setattr(tokenization_auto, "_use_mistral_format", format_of)
    found = load_component(AutoTokenizer, tmp_path, torch.float32)
    assert asked == [False]
    assert found.chat_template == words.chat_template
