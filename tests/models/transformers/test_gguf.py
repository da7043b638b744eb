"""GGUF files against the model that they were written from."""

from __future__ import annotations

import gguf_files
import pytest
import texts
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize, quantize

from mmspec.errors import InputError
from mmspec.models.transformers import gguf
from mmspec.models.transformers.gguf import load_gguf, unpack_gguf
from mmspec.pipelines.text.pipeline import TextPipeline


@pytest.fixture(scope="module")
def words():
    return texts.tokenizer()


@pytest.fixture(scope="module")
def llama(words):
    return texts.model(words).float()


@pytest.fixture(scope="module")
def file(tmp_path_factory, words, llama):
    return gguf_files.write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", llama, words)


def test_it_is_the_same_model(file, words, llama):
    found = load_gguf(file, torch.float32)
    ids = torch.tensor([words(texts.TEXT)["input_ids"][:40]])
    torch.testing.assert_close(found["model"](ids).logits, llama(ids).logits)
    assert found["model"].config.tie_word_embeddings
    assert found["model"].generation_config.eos_token_id == words.eos_token_id


def test_it_is_the_same_tokenizer(file, words):
    found = load_gguf(file, torch.float32, ["tokenizer"])
    assert set(found) == {"tokenizer"}
    for text in (texts.TEXT, "Größe 7\n\ttab", "<|im_start|>user\nhi<|im_end|>"):
        assert found["tokenizer"](text)["input_ids"] == words(text)["input_ids"]
    assert found["tokenizer"].chat_template == words.chat_template


def test_weights_in_few_bits_are_the_floats_that_they_stand_for(tmp_path, words, llama):
    file = gguf_files.write_gguf(tmp_path / "small.gguf", llama, words, bits=8)
    weight = "model.layers.1.mlp.down_proj.weight"
    found = load_gguf(file, torch.float32, ["model"])["model"].state_dict()[weight]
    packed = quantize(llama.state_dict()[weight].numpy(), GGMLQuantizationType.Q8_0)
    stands = torch.from_numpy(dequantize(packed, GGMLQuantizationType.Q8_0))
    torch.testing.assert_close(found, stands)


def test_unpacked_it_is_a_folder_like_others(file, llama, tmp_path):
    unpack_gguf(file, tmp_path / "tiny")
    pipe = TextPipeline.from_pretrained(tmp_path / "tiny")
    for name, weight in llama.state_dict().items():
        torch.testing.assert_close(pipe.model.state_dict()[name], weight)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF and then nothing")
    with pytest.raises(InputError, match=r"can't read .*a\.gguf as a language model"):
        load_gguf(tmp_path / "a.gguf", torch.float32)


def test_without_the_reader(file, monkeypatch):
    monkeypatch.setattr(gguf, "is_gguf_available", lambda: False)
    with pytest.raises(InputError, match="pip install gguf"):
        load_gguf(file, torch.float32)
