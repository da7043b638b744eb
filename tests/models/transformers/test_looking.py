"""Attention weights of layers, whatever the module is called that has them."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import mmspec
from mmspec import SpecConfig
from mmspec.models.transformers.causal import CausalDecoder
from mmspec.models.transformers.looking import attention_of, attention_told
from mmspec.models.transformers.tiny import tiny

# by model type, where a layer has its attention, and what the model says of it
KINDS = {
    "llama": "self_attn, stated",
    "gpt2": "attn, stated under its name",
    "gpt_neox": "attention, stated",
    "gpt_neo": "attn.attention, stated",
    "gpt_bigcode": "attn, stated under its name",
    "gptj": "attn, stated",
    "opt": "self_attn, stated",
    "bert": "attention.self, stated",
    "dbrx": "norm_attn_norm.attn, stated",
    "bloom": "self_attention, not stated",
    "falcon": "self_attention, not stated",
    "mpt": "attn, not stated",
    "gpt_neox_japanese": "attention, which gives a third thing, not stated",
    "rembert": "attention, which hands on what its inner part gives, not stated",
}
FORGETFUL = [kind for kind in KINDS if kind not in ("gpt_neo", "bloom", "mpt")]


@torch.inference_mode()
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_that_transformers_gives(kind):
    """Layer by layer, each told once; what the model is set to do afterwards is what it was."""
    model, told = tiny(kind), []
    ids = torch.randint(3, 36, (2, 9), generator=torch.Generator().manual_seed(0))
    decoder = CausalDecoder(model)
    decoder.cache(1, 1)
    before = model.config._attn_implementation
    with attention_told(decoder, lambda layer, weights: told.append((layer, weights))):
        decoder.body(input_ids=ids, use_cache=False)
    assert model.config._attn_implementation == before
    model.config._attn_implementation = "eager"
    theirs = model(input_ids=ids, use_cache=False, output_attentions=True).attentions
    assert [layer for layer, _ in told] == [*range(len(theirs))]
    for (_, mine), wanted in zip(told, theirs, strict=True):
        assert mine.shape == wanted.shape == (2, mine.shape[1], 9, 9)
        assert torch.allclose(mine, wanted, atol=1e-5)


def test_what_attends_to_something_else_is_not_asked():
    """GPT-2 may have a second attention of the same class, to what an encoder says."""
    sizes = dict(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2)
    model = GPT2LMHeadModel(GPT2Config(**sizes, add_cross_attention=True))
    for block in model.transformer.h:
        assert type(block.attn) is type(block.crossattention)
        assert attention_of(model.transformer, block) == [block.attn]


def test_of_a_model_that_states_nothing_all_modules_are_asked():
    block = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU()))
    assert attention_of(nn.Linear(2, 2), block) == [block[0], block[1], block[1][0]]


@pytest.mark.parametrize("kind", FORGETFUL)
def test_caches_that_forget_go_by_it(kind):
    """The text is plain decoding's where a draft model's cache forgets, or the target's nothing."""
    model, small = tiny(kind, torch.float64), tiny(kind, torch.float64)
    ids = torch.randint(3, 36, (1, 12), generator=torch.Generator().manual_seed(0))
    how = dict(max_new_tokens=6, do_sample=False)
    plain = model.generate(ids, **how)
    for options in (
        dict(draft_cache="snapkv", draft_cache_size=8, cache_window=3),
        dict(draft_cache="speckv", draft_cache_size=8, cache_window=3),
        dict(target_cache="snapkv", target_cache_keep=1.0, cache_window=3),
    ):
        mmspec.enable_speculation(model, SpecConfig("draft", **options), drafter=small)
        assert torch.equal(model.generate(ids, **how), plain)
        stats = model.speculation_stats
        assert stats.fault is None
        assert stats.draft_cache_entries == ([8] if "draft_cache" in options else [])
