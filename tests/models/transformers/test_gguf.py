"""GGUF files against the model that they were written from."""

from __future__ import annotations

import copy
import math

import gguf_files
import numpy as np
import pytest
import texts
import torch
from gguf import GGMLQuantizationType, RopeScalingType
from gguf.quants import dequantize, quantize
from transformers import LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from mmspec.errors import InputError
from mmspec.models.transformers import gguf
from mmspec.models.transformers.gguf import load_gguf, unpack_gguf
from mmspec.models.transformers.gguf_header import GgufHeader, take_rotary
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


# --- what the reader leaves out -------------------------------------------------------------------


def same_rotary(found, llama, words, **parameters) -> None:
    """The logits are those of transformers' own model with these parameters."""
    config = copy.deepcopy(llama.config)
    config.rope_parameters = {"rope_theta": 10000.0, **parameters}
    told = LlamaForCausalLM(config).eval()
    told.load_state_dict(llama.state_dict())
    ids = torch.tensor([words(texts.TEXT)["input_ids"][:40]])
    torch.testing.assert_close(found(ids).logits, told(ids).logits)
    assert (found(ids).logits - llama(ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_factors_of_frequencies_are_llama_3s(tmp_path, words, llama, factor):
    """As llama.cpp's converter writes them for Llama 3.1 and 3.2."""
    pairs = llama.config.hidden_size // llama.config.num_attention_heads // 2
    factors = []
    for n in range(pairs):
        length = 2 * math.pi * 10000.0 ** (n / pairs)
        share = (8192 / length - 1) / (4 - 1)
        between = 1 / ((1 - share) / factor + share)
        factors.append(1.0 if share > 1 else factor if share < 0 else between)
    assert factors[-1] > factors[0] == 1.0
    told = {"rope_freqs.weight": np.array(factors, np.float32)}
    found = load_gguf(
        gguf_files.write_gguf(tmp_path / "a.gguf", llama, words, more=told), torch.float32
    )["model"]
    assert found.config.rope_parameters["rope_type"] == "llama3"
    config = copy.deepcopy(llama.config)
    config.rope_parameters = {**found.config.rope_parameters, "factor": factor}
    theirs = LlamaRotaryEmbedding(config).inv_freq
    plain = 10000.0 ** -(torch.arange(pairs) / pairs)
    torch.testing.assert_close(theirs, plain / torch.tensor(factors))
    torch.testing.assert_close(found.model.rotary_emb.inv_freq, theirs)


def test_other_factors_are_refused(tmp_path, words, llama):
    pairs = llama.config.hidden_size // llama.config.num_attention_heads // 2
    told = {"rope_freqs.weight": np.linspace(1, 8, pairs, dtype=np.float32)}
    file = gguf_files.write_gguf(tmp_path / "a.gguf", llama, words, more=told)
    with pytest.raises(
        InputError, match=r"a\.gguf: its rope_freqs\.weight are not those of Llama 3"
    ):
        load_gguf(file, torch.float32)


def test_linear_scaling(tmp_path, words, llama):
    def say(writer):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    file = gguf_files.write_gguf(tmp_path / "a.gguf", llama, words, say=say)
    found = load_gguf(file, torch.float32)["model"]
    same_rotary(found, llama, words, rope_type="linear", factor=4.0)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"say": lambda writer: writer.add_rope_scaling_type(RopeScalingType.YARN)},
            r"llama\.rope\.scaling\.type 'yarn' are not read",
        ),
        ({"more": {"rope_factors_long.weight": np.ones(4, np.float32)}}, "rope_factors_long"),
        ({"without": "blk.1.ffn_down.weight"}, r"missing .*layers\.1\.mlp\.down_proj\.weight"),
        ({"more": {"blk.0.attn_q.bias": np.ones(32, np.float32)}}, "biases that LlamaForCausalLM"),
        (
            {"say": lambda writer: writer.add_uint16("split.count", 3)},
            r"one of 3 files of a model: join them",
        ),
    ],
)
def test_what_would_be_another_model_is_refused(tmp_path, words, llama, arguments, told):
    file = gguf_files.write_gguf(tmp_path / "a.gguf", llama, words, **arguments)
    with pytest.raises(InputError, match=told):
        load_gguf(file, torch.float32)


def test_a_base_that_the_reader_does_not_map_is_taken(file, llama):
    """As of Starcoder 2, whose class keeps its usual one."""
    model = copy.deepcopy(llama)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 5e5}
    model.model.rotary_emb = LlamaRotaryEmbedding(model.config)
    take_rotary(model, GgufHeader(file))
    assert model.config.rope_parameters["rope_theta"] == 10000.0
    torch.testing.assert_close(model.model.rotary_emb.inv_freq, llama.model.rotary_emb.inv_freq)


def test_scaling_of_layers_of_several_kinds_is_refused(tmp_path, words, llama):
    """As of Gemma 3."""

    def say(writer):
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(8.0)

    header = GgufHeader(gguf_files.write_gguf(tmp_path / "a.gguf", llama, words, say=say))
    model = copy.deepcopy(llama)
    model.config.rope_parameters = {"full_attention": {"rope_type": "default", "rope_theta": 1e4}}
    with pytest.raises(InputError, match="scaling of positions is not read for llama"):
        take_rotary(model, header)


def test_weights_become_floats_and_no_kernel_is_downloaded(file, monkeypatch):
    """Whatever the architecture: transformers leaves those of some in blocks where it can."""
    asked = []
    read = gguf.AutoModelForCausalLM.from_pretrained

    def reading(*where, **told):
        asked.append(told["quantization_config"])
        return read(*where, **told)

    monkeypatch.setattr(gguf.AutoModelForCausalLM, "from_pretrained", reading)
    model = load_gguf(file, torch.float32, ["model"])["model"]
    assert asked[0].dequantize
    assert all(weight.is_floating_point() for weight in model.parameters())


def test_without_the_reader(file, monkeypatch):
    monkeypatch.setattr(gguf, "is_gguf_available", lambda: False)
    with pytest.raises(InputError, match="pip install gguf"):
        load_gguf(file, torch.float32)
