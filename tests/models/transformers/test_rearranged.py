"""Rearranged layers give what the layers give, and stand back where somebody looks in."""

from __future__ import annotations

import copy

import pytest
import torch
from sizes import SMALL
from transformers import (
    GemmaConfig,
    GemmaForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mmspec.engine.draft import Draft
from mmspec.engine.laws import OneHot
from mmspec.models.guided import GuidedDecoder
from mmspec.models.prefill import WHOLE
from mmspec.models.setting import Setting
from mmspec.models.transformers import rearranged
from mmspec.models.transformers.causal import CausalDecoder


@pytest.fixture(autouse=True)
def in_float64(monkeypatch):
    monkeypatch.setattr(rearranged, "TYPES", (torch.float64,))


SIZES = SMALL | dict(vocab_size=20, num_key_value_heads=2)
KINDS = {
    "llama": (LlamaConfig, LlamaForCausalLM, {}),
    "turned otherwise": (
        LlamaConfig,
        LlamaForCausalLM,
        dict(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0}),
    ),
    "mistral": (MistralConfig, MistralForCausalLM, dict(sliding_window=None)),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM, {}),  # biases
    "qwen3": (Qwen3Config, Qwen3ForCausalLM, dict(head_dim=8)),  # norms of queries and keys
}


def made(kind, **more):
    config, network, settings = KINDS[kind]
    return random(network(config(**SIZES | settings | more)))


def random(model):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return model.double().eval()


def run(model, packed: bool, reads=(), use=None):
    """Logits of a ragged prefill, a tree, its kept branch; and states that a head would read."""
    decoder = CausalDecoder(model)
    ids, mask = torch.tensor([[3, 1, 4, 1, 5], [0, 0, 6, 5, 3]]), torch.ones(2, 5).bool()
    mask[1, :2] = False
    out = []
    decoder.reads = reads
    guided = GuidedDecoder(
        decoder, Setting(decoder.embeddings[ids], mask, None, lambda x: x, 12, 0, 9)
    )
    with decoder.repacked() if packed else torch.inference_mode():
        assert (decoder._rearranged is not None) == packed
        guided.prefix_states = WHOLE
        guided.start(2)
        out.append(guided.hidden)
        nodes, parents = torch.tensor([[7, 8, 9], [2, 4, 6]]), torch.tensor([[-1, -1, 0]] * 2)
        draft = Draft(nodes, torch.tensor([3, 3]), OneHot(), parents)
        out.append(guided.extend(torch.cat([nodes[:, :1], nodes], 1), [-1, -1], draft))
        guided.keep([-1, -1], torch.tensor([[0, 2]] * 2))
        out.append(guided.extend(torch.tensor([[5, 1], [8, 8]]), [2, 2]))
        out.append(guided.extend(torch.tensor([[5], [8]]), [3, 1], use=use))
    return out


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_same_function(kind):
    model = made(kind)
    layers = range(model.config.num_hidden_layers)
    for reads, use in (((), None), ((0, 1), None), ((), [layers[:1], layers])):
        own, found = (run(model, packed, reads, use) for packed in (False, True))
        for mine, theirs in zip(found, own, strict=True):
            assert torch.allclose(mine, theirs, atol=1e-5, rtol=1e-6)


@torch.inference_mode()
def test_one_token_reads_everything_in_front():
    model = made("llama")
    decoder = CausalDecoder(model)
    ids = torch.tensor([[3, 1, 4, 1]])
    prefix, mask = decoder.embeddings[ids], torch.ones(1, 4).bool()
    guided = GuidedDecoder(decoder, Setting(prefix, mask, None, lambda x: x, 8, 0, 1))
    with decoder.repacked():
        guided.start(1)
        logits = [guided.extend(torch.tensor([[t]]), [n - 1]) for n, t in enumerate((0, 9, 2))]
    truth = model(torch.tensor([[3, 1, 4, 1, 9, 2]])).logits[:, 3:]
    assert torch.allclose(torch.cat(logits, 1), truth, atol=1e-5)


@torch.inference_mode()
def test_changed_weights_are_rearranged_anew():
    model = made("qwen3")
    decoder = CausalDecoder(model)
    of = decoder._rearranging.of
    first = of(decoder)
    assert first is not None
    assert of(decoder) is first
    for name in ("self_attn.q_norm", "mlp.up_proj", "input_layernorm"):
        model.model.layers[1].get_submodule(name).weight.data += 0.01
        second = of(decoder)
        assert second is not first, name
        first = second
    assert copy.deepcopy(decoder)._rearranging.of(decoder) is not first


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_models_that_once_handed_out_states(kind):
    """transformers leaves its hooks behind; they ask for nothing."""
    model = made(kind)
    decoder = CausalDecoder(model)
    first = decoder._rearranging.of(decoder)
    assert first is not None
    told = {"output_hidden_states": True, "output_attentions": True}
    out = model.model(torch.tensor([[3, 1, 4]]), use_cache=False, **told)
    assert out.hidden_states[0] is not None
    assert any(module._forward_hooks for module in model.model.modules())  # or this is no test
    assert decoder._rearranging.of(decoder) is first
    _hooked(model)
    assert decoder._rearranging.of(decoder) is None


def _hooked(model):
    model.model.layers[1].mlp.register_forward_hook(lambda *a: None)


def _replaced(model):
    model.model.layers[0].mlp.down_proj.forward = lambda x: x


def _adapted(model):
    class Adapter(torch.nn.Linear):
        """A layer of another class."""

    mlp = model.model.layers[1].mlp
    mlp.up_proj = Adapter(mlp.up_proj.in_features, mlp.up_proj.out_features, bias=False).double()


def _rounded(model):
    model.bfloat16()


@pytest.mark.parametrize("change", [_hooked, _replaced, _adapted, _rounded])
def test_it_stands_back(change):
    model = made("llama")
    change(model)
    decoder = CausalDecoder(model)
    assert decoder._rearranging.of(decoder) is None


def test_other_models_run_as_they_are():
    others = [
        random(GemmaForCausalLM(GemmaConfig(**SIZES))),
        made("mistral", sliding_window=4),
        made("llama", attention_bias=True),
        made("llama", mlp_bias=True),
    ]
    for model in others:
        decoder = CausalDecoder(model)
        assert decoder._rearranging.of(decoder) is None


def test_the_language_model_of_one_that_sees():
    vision = SMALL | dict(image_size=8, patch_size=4, num_key_value_heads=None)
    vision = dict(model_type="clip_vision_model") | {n: v for n, v in vision.items() if v}
    text = dict(model_type="llama") | SIZES
    config = LlavaConfig(vision_config=vision, text_config=text)
    model = random(LlavaForConditionalGeneration(config))
    decoder = CausalDecoder(model)
    assert decoder._rearranging.of(decoder) is not None
