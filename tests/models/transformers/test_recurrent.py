"""Models that keep a state, over a cache that rolls back: what they write is what `generate` does.

Tiny random models; the oracle is `generate` of the same model, a row alone and without padding.
"""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import DynamicCache

from mmspec import SpecConfig, disable_speculation, enable_speculation
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.models.guided import GuidedDecoder
from mmspec.models.setting import Setting
from mmspec.models.transformers import recurrent
from mmspec.models.transformers.entry_cache import EntryCache, Folding
from mmspec.models.transformers.probe import probed
from mmspec.models.transformers.tiny import tiny

STEPWISE = {"jamba", "mamba"}
KINDS = [
    "falcon_h1",  # attention and a state in every layer
    "jamba",  # goes on from a state a token at a time
    "lara_mini",  # windows too
    "lfm2",  # convolutions alone keep a state
    "mamba",
    "mamba2",  # no attention at all
    "nemotron_h",  # layers of four kinds
    "qwen3_next",
    "zamba2",
]
ASKED = {"do_sample": False, "eos_token_id": None}
PROMPTS = [[3, 11, 4, 11, 5, 9, 12] * 3, [6, 5, 3, 5], [8, 9, 7, 9, 3, 12, 3, 3, 5] * 2]
NEW = 40  # several times what is folded at once


@pytest.fixture(autouse=True)
def _quiet(caplog):
    """Configs that are tiny on purpose."""
    caplog.set_level("ERROR", "transformers")


def batch() -> dict[str, torch.Tensor]:
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[0] * (width - len(p)) + p for p in PROMPTS])
    mask = torch.arange(width) >= torch.tensor([[width - len(p)] for p in PROMPTS])
    return {"input_ids": ids, "attention_mask": mask.long()}


def alone(model, prompts=PROMPTS, new=NEW) -> list[list[int]]:
    return [
        model.generate(torch.tensor([p]), max_new_tokens=new, **ASKED)[0, len(p) :].tolist()
        for p in prompts
    ]


def spoken(model, method: SpecConfig, drafter=None, new=NEW) -> list[list[int]]:
    enable_speculation(model, method, drafter)
    given = batch()
    out = model.generate(**given, max_new_tokens=new, **ASKED)
    stats = model.speculation_stats
    disable_speculation(model)
    assert stats.fault is None
    return out[:, given["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_chains_and_trees_are_exact_in_batches(kind):
    """Long prompts and short ones, whose rows keep different numbers of tokens."""
    model = tiny(kind, torch.float64)
    theirs = alone(model)
    assert spoken(model, SpecConfig("prompt-lookup")) == theirs
    assert spoken(model, SpecConfig("token-recycling")) == theirs


@pytest.mark.parametrize("folding", [Folding(1, 1), Folding(1000, 0)], ids=str)
def test_states_are_only_a_shortcut(folding, monkeypatch):
    """Whether all goes into states at once, or nothing ever does."""
    monkeypatch.setattr(recurrent, "Folding", lambda: folding)
    model = tiny("qwen3_next", torch.float64)
    assert spoken(model, SpecConfig("token-recycling")) == alone(model)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["draft", "dynamic-tree", "pearl"])
def test_draft_models_that_keep_a_state(method):
    model, drafter = (tiny(kind, torch.float64) for kind in ("llama", "qwen3_next"))
    config = SpecConfig(method, draft_beside="here") if method == "pearl" else SpecConfig(method)
    assert spoken(model, config, drafter) == alone(model)
    assert spoken(drafter, config, model) == alone(drafter)


@pytest.mark.parametrize("kind", ["mamba2", "jamba", "qwen3_next"])
@pytest.mark.parametrize("folding", [Folding(1, 1), Folding()], ids=str)
def test_draft_models_states_are_their_own_forward_pass(kind, folding, monkeypatch):
    """With the target's weights every draft stands, so the state behind it was right."""
    monkeypatch.setattr(recurrent, "Folding", lambda: folding)
    model = tiny(kind, torch.float64)
    theirs = alone(model)
    config = SpecConfig("draft", num_draft_tokens=4)
    enable_speculation(model, config, copy.deepcopy(model))
    given = batch()
    out = model.generate(**given, max_new_tokens=NEW, **ASKED)
    stats = model.speculation_stats
    disable_speculation(model)
    assert out[:, given["input_ids"].shape[1] :].tolist() == theirs
    assert stats.drafted == stats.accepted
    assert stats.calls == [NEW // 5] * len(PROMPTS)


def test_rounded_weights_and_part_of_the_layers_move_no_state_on(monkeypatch):
    folds: list[bool] = []
    call = recurrent.RecurrentLayers.call

    def told(self, *args):
        folds.append(args[-1])
        return call(self, *args)

    monkeypatch.setattr(recurrent.RecurrentLayers, "call", told)
    model = tiny("lfm2", torch.float32)
    theirs = alone(model)
    for method, kinds in (
        ("plain", {True}),
        ("specqd", {True, False}),
        ("early-exit", {True, False}),
    ):
        folds.clear()
        assert spoken(model, SpecConfig(method)) == theirs
        assert set(folds) == kinds


@pytest.mark.parametrize("method", ["plain", "token-recycling"])
@pytest.mark.parametrize("kind", ["lfm2", "qwen3_next"])
def test_a_row_begins_anew_in_anothers_place(kind, method):
    """The first text ends where the next prompt, of one token, begins."""
    model = tiny(kind, torch.float64)
    prompts = [[*PROMPTS[0][:14]], [6], [7, 3]]
    end = alone(model, prompts[:1], 3)[0][-1]
    asked = {"do_sample": False, "eos_token_id": end, "pad_token_id": 0, "max_new_tokens": 12}
    theirs = [model.generate(torch.tensor([p]), **asked)[0, len(p) :].tolist() for p in prompts]
    enable_speculation(model, SpecConfig(method))
    model.generate.__self__.at_once = 1
    ids = torch.tensor([[0] * (14 - len(p)) + p for p in prompts])
    mask = torch.arange(14) >= torch.tensor([[14 - len(p)] for p in prompts])
    ours = model.generate(input_ids=ids, attention_mask=mask.long(), **asked)[:, 14:]
    disable_speculation(model)
    width = ours.shape[1]
    assert ours.tolist() == [t + [0] * (width - len(t)) for t in theirs]


def test_no_cache_is_given_out():
    model = tiny("qwen3_next")
    enable_speculation(model, SpecConfig("prompt-lookup"))
    ids = torch.tensor([PROMPTS[1]])
    out = model.generate(ids, max_new_tokens=4, return_dict_in_generate=True, **ASKED)
    assert out.past_key_values is None
    assert out.sequences.shape == (1, len(PROMPTS[1]) + 4)


@pytest.mark.parametrize("known", [False, True])
def test_a_cache_that_is_handed_in_is_refused(known):
    model = tiny("falcon_h1")
    cache = DynamicCache()
    if known:
        cache = model(torch.tensor([PROMPTS[1][:-1]]), use_cache=True).cache
    enable_speculation(model, SpecConfig("prompt-lookup"))
    with pytest.raises(InputError, match="keep a state"):
        model.generate(torch.tensor([PROMPTS[1]]), past_key_values=cache, **ASKED)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["jamba", "mamba2", "lfm2"])
def test_some_go_on_from_a_state_a_token_at_a_time(kind, dtype):
    decoder = probed(tiny(kind, dtype))
    assert decoder.recurrent.stepwise == (kind in STEPWISE)
    parts = getattr(decoder.cache(2, 9), "parts", [decoder.cache(2, 9)])
    assert sum(isinstance(part, EntryCache) for part in parts) == 1


@torch.inference_mode()
def test_a_call_that_fails_leaves_no_state_behind(monkeypatch):
    """Layers before the fault have moved on, those behind it have not."""
    monkeypatch.setattr(recurrent, "Folding", lambda: Folding(1, 1))
    model = tiny("qwen3_next", torch.float64)
    decoder = probed(model)
    ids = torch.tensor([PROMPTS[1]])
    prompt = decoder.prompt(ids, torch.ones_like(ids).bool(), limit=8)
    decoder.place(prompt)
    guided = GuidedDecoder(
        decoder, Setting(prompt.embedded, prompt.mask, None, Warp(), limit=8, grid=0, scratch=4)
    )
    guided.start(1)
    guided.extend(torch.tensor([[5, 9, 12]]), [-1])
    assert guided.cache is not None
    entries = next(part for part in guided.cache.parts if isinstance(part, EntryCache))
    assert entries.folded.tolist() != [0]

    def fails(*_):
        raise RuntimeError("once")

    new = torch.tensor([[7, 3]])
    hook = model.model.layers[2].mlp.register_forward_pre_hook(fails)
    with pytest.raises(RuntimeError, match="once"):
        guided.extend(new, [2])
    hook.remove()
    law = guided.extend(new, [2])[0]
    text = torch.tensor([[*PROMPTS[1], 9, 12, 7, 3]])
    assert torch.allclose(law, model(text).logits[0, -2:].softmax(-1), atol=1e-5)
