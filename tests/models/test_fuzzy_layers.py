"""Fuzzy layers against a network that is written out, over a cache and with padded rows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from sizes import SMALL
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mmspec.errors import InputError
from mmspec.models.fuzzy_layers import sources
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers.causal import CausalDecoder

LAYERS = 6
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "mixtral": (MixtralConfig, MixtralForCausalLM),
}


def made(family="llama", dtype=torch.float64):
    config, kind = FAMILIES[family]
    sizes = SMALL | dict(vocab_size=23, num_hidden_layers=LAYERS, num_key_value_heads=2, head_dim=8)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = kind._from_config(config(**sizes), experts_implementation="eager")
        for weight in model.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.2)
    return model.eval().to(dtype)


def guided(model, ids, mask):
    decoder = CausalDecoder(model)
    setting = Setting(decoder.embeddings[ids], mask, None, lambda x: x.softmax(-1), 12, 0, 4)
    return GuidedDecoder(decoder, setting)


def norm(x, weight, eps):
    return x * (x.pow(2).mean(-1, keepdim=True) + eps).rsqrt() * weight


def turned(x, base):
    """Rotary positions, written out: `x [heads, T, head_dim]`."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[1], dtype=x.dtype)[:, None]
    angle = angle / base ** (torch.arange(half, dtype=x.dtype) / half)
    one, two = x[..., :half], x[..., half:]
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([one * cos - two * sin, two * cos + one * sin], -1)


def attention(block, x, base):
    """Causal attention of one row `x [T, D]`, a loop over heads."""
    own = block.self_attn
    heads = [F.linear(x, p.weight).unflatten(-1, (-1, 8)).movedim(1, 0) for p in
             (own.q_proj, own.k_proj, own.v_proj)]  # fmt: skip
    q, k, v = heads
    if hasattr(own, "q_norm"):
        q, k = norm(q, own.q_norm.weight, 1e-6), norm(k, own.k_norm.weight, 1e-6)
    q, k = turned(q, base), turned(k, base)
    out = []
    for n in range(len(q)):
        of = n * len(k) // len(q)
        scores = q[n] @ k[of].T / 8**0.5
        scores = scores.masked_fill(torch.ones_like(scores).triu(1).bool(), -torch.inf)
        out.append(scores.softmax(-1) @ v[of])
    return F.linear(torch.cat(out, -1), own.o_proj.weight)


@torch.no_grad()
def by_hand(model, ids, size):
    """Laws `[T, V]` of one row: attentions first, a group at a time, then what adds them up."""
    config, h = model.config, model.get_input_embeddings().weight[ids]
    base, eps = config.rope_parameters["rope_theta"], config.rms_norm_eps
    layers, n = list(model.model.layers), 0
    while n < len(layers):
        alone = n in (0, len(layers) - 1)
        group = layers[n : n + 1] if alone else layers[n : min(n + size, len(layers) - 1)]
        told = [attention(b, norm(h, b.input_layernorm.weight, eps), base) for b in group]
        for block, o in zip(group, told, strict=True):
            h = h + o
            x = norm(h, block.post_attention_layernorm.weight, eps)
            h = h + block.mlp(x[None])[0]
        n += len(group)
    return model.lm_head(norm(h, model.model.norm.weight, eps)).softmax(-1)


IDS = torch.randint(1, 23, (2, 11), generator=torch.Generator().manual_seed(4))
PADS = [0, 3]


@torch.inference_mode()
def over_a_cache(model, size, repacked=False):
    """Laws behind the last six tokens: four in one call, and then one by one."""
    ids, mask = IDS[:, :5], torch.arange(5) >= torch.tensor(PADS)[:, None]
    rows = guided(model, ids, mask)
    with rows.decoder.repacked() if repacked else torch.inference_mode():
        with rows.decoder.fuzzy(size):
            rows.start(2)
            laws = [rows.extend(IDS[:, 4:8], [-1, -1])]
            laws += [rows.extend(IDS[:, 8 + n : 9 + n], [3 + n] * 2) for n in range(3)]
        if repacked:
            assert rows.decoder._rearranged is not None
    return torch.cat(laws, 1)


def test_groups_leave_out_the_first_and_the_last():
    assert sources(7, 4) == [0, 1, 1, 1, 1, 5, 6]
    assert sources(7, 1) == list(range(7))
    assert sources(7, 64) == [0, 1, 1, 1, 1, 1, 6]
    assert [sources(n, 4) for n in range(4)] == [[], [0], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 9])
@pytest.mark.parametrize("family", FAMILIES)
def test_layers_are_those_written_out(family, size):
    model = made(family)
    laws = over_a_cache(model, size)
    for row, pad in enumerate(PADS):
        expected = by_hand(model, IDS[row, pad:], size)[-7:]
        assert torch.allclose(laws[row], expected, atol=1e-10)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_rearranged_layers_too(family, size):
    """In float32, which they are for."""
    laws = over_a_cache(made(family, torch.float32), size, repacked=True)
    for row, pad in enumerate(PADS):
        expected = by_hand(made(family), IDS[row, pad:], size)[-7:]
        assert torch.allclose(laws[row].double(), expected, atol=1e-4)


def test_pictures_too(tiny_llamagen, guided_rows):
    """A transformer of two layers has none between; groups of its own are told by hand."""
    model = tiny_llamagen()
    rows = guided_rows(model, [0, 2])[0]
    tokens = torch.randint(16, (2, 6), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        rows.start(2)
        exact = rows.extend(tokens, [-1, -1])
        with rows.decoder.fuzzy(4):
            assert torch.equal(rows.extend(tokens, [-1, -1]), exact)
        with rows.decoder.layers.reading([0, 0]):
            assert (rows.extend(tokens, [-1, -1]) - exact).abs().max() > 1e-3
        assert torch.equal(rows.extend(tokens, [-1, -1]), exact)


@pytest.mark.parametrize("family", FAMILIES)
def test_groups_of_one_are_the_model(family):
    model = made(family)
    ids = IDS[:1]
    with torch.inference_mode():
        expected = model(ids).logits.softmax(-1)[0, -7:]
    assert torch.allclose(over_a_cache(model, 1)[0], expected, atol=1e-10)
    assert (over_a_cache(model, 2)[0] - expected).abs().max() > 1e-3
    with torch.inference_mode():  # and the model is as it was
        assert torch.equal(model(ids).logits.softmax(-1)[0, -7:], expected)


def test_layers_with_one_norm_for_both_are_refused():
    sizes = {n: v for n, v in SMALL.items() if "key_value" not in n}
    decoder = CausalDecoder(GPTNeoXForCausalLM(GPTNeoXConfig(**sizes, vocab_size=23)).eval())
    with pytest.raises(InputError, match="GPTNeoXLayer has no norm in front of attention alone"):
        decoder.fuzzy(2)
