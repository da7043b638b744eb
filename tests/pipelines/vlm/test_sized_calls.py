"""Length "auto" under `enable_speculation(model)`: calls take turns, texts stay what they are."""

from __future__ import annotations

import itertools

import pytest
import torch
from toy_vlm import tiny_head
from vlms import NEW, asked, made

import mmspec
from mmspec import SpecConfig
from mmspec.errors import InputError
from mmspec.models.transformers.tiny import tiny
from mmspec.pipelines import load_switch
from mmspec.pipelines.load_switch import LoadSwitch, any_sample, choices_of

AUTO = SpecConfig("draft", length="auto")
EVERY = choices_of(AUTO, "vlm")
ENDS = [5, 12, 19, 26]


@pytest.fixture(scope="module")
def models():
    """A language model in float64, and a smaller one with its first layers."""
    model, small = tiny("llama", torch.float64), tiny("llama", torch.float64, num_hidden_layers=3)
    small.load_state_dict(model.state_dict(), strict=False)
    yield model, small
    mmspec.disable_speculation(model)


@pytest.fixture
def turns(monkeypatch):
    """Let every choice have its turn, call by call; the calls' choices and rows."""
    found, order = [], {}
    enter = LoadSwitch.call

    def chosen(ledger, arms, rows, best, turns):
        return next(order.setdefault(id(ledger), itertools.cycle([*arms, None]))), False

    def call(self, choices, rows, *rest, **more):
        found.append((choices, rows))
        return enter(self, choices, rows, *rest, **more)

    monkeypatch.setattr(load_switch, "_chosen", chosen)
    monkeypatch.setattr(LoadSwitch, "call", call)
    return found


def ragged():
    ids = torch.randint(3, 36, (3, 12), generator=torch.Generator().manual_seed(5))
    mask = (torch.arange(12) >= torch.tensor([[0], [7], [3]])).long()
    return {"input_ids": ids * mask, "attention_mask": mask}


def test_greedy_texts_are_plain_decodings_whatever_is_chosen(models, turns):
    """Ragged rows that end apart, twice through all sizes and plain decoding."""
    model, small = models
    mmspec.disable_speculation(model)
    how = dict(max_new_tokens=24, do_sample=False, eos_token_id=ENDS)
    plain = model.generate(**ragged(), **how)
    mmspec.enable_speculation(model, AUTO, drafter=small)
    seen, drafted = [], []
    with torch.random.fork_rng():
        torch.manual_seed(3)  # a greedy text has no seed
        for _ in range(2 * len(EVERY)):
            assert torch.equal(model.generate(**ragged(), **how), plain)
            stats = model.speculation_stats
            assert stats.fault is None
            seen.append(stats.method)
            drafted.append(sum(stats.drafted) / sum(stats.calls))
    assert turns == [(EVERY, 3)] * len(seen)
    assert seen == 2 * ["draft", "draft", "draft", "plain"]
    own, twice, half, none = drafted[:4]
    assert twice > own > half > none == 0
    mmspec.disable_speculation(model)
    assert torch.equal(model.generate(**ragged(), **how), plain)


def test_a_seed_keeps_its_sample(models, turns):
    """The usual size drafts in every call, as without "auto"; unless somebody keeps no seed."""
    model, small = models
    how = dict(max_new_tokens=24, do_sample=True, eos_token_id=ENDS)
    found = []
    for config in (SpecConfig("draft"), AUTO, AUTO):
        mmspec.enable_speculation(model, config, drafter=small)
        with torch.random.fork_rng():
            torch.manual_seed(11)
            found.append((model.generate(**ragged(), **how), model.speculation_stats.accepted))
    assert not turns
    for out, accepted in found[1:]:
        assert torch.equal(out, found[0][0])
        assert accepted == found[0][1]
    with any_sample(), torch.random.fork_rng():
        torch.manual_seed(11)
        methods = []
        for _ in EVERY:
            model.generate(**ragged(), **how)
            methods.append(model.speculation_stats.method)
    assert methods == ["draft", "draft", "draft", "plain"]
    assert len(turns) == 4


def test_rows_are_those_that_a_call_has(models, turns):
    model, small = models
    mmspec.enable_speculation(model, AUTO, drafter=small)
    how = dict(max_new_tokens=3)
    with any_sample():
        model.generate(**ragged(), **how, do_sample=True, num_return_sequences=2)
        model.generate(ragged()["input_ids"][:1], **how)
        model.generate(**how, bos_token_id=4)
        embeds = model.get_input_embeddings()(ragged()["input_ids"][:2])
        model.generate(inputs_embeds=embeds, **how)
        asks = config_with(model, do_sample=True, num_return_sequences=4)
        model.generate(ragged()["input_ids"], generation_config=asks, **how)
    assert [rows for _, rows in turns] == [6, 1, 1, 2, 12]


def config_with(model, **settings):
    made_ = type(model.generation_config).from_dict(model.generation_config.to_dict())
    made_.update(**settings)
    return made_


def test_calls_that_go_on_or_are_listened_to_have_no_choice(models, turns):
    """A cache that is handed in is read by the usual size; a listener hears of every generation."""
    model, small = models
    mmspec.enable_speculation(model, AUTO, drafter=small)
    ids = ragged()["input_ids"][:1]
    how = dict(max_new_tokens=4, do_sample=False)
    out = model.generate(ids, **how, return_dict_in_generate=True)
    assert len(turns) == 1
    then = torch.cat([out.sequences, ids], dim=1)
    model.generate(then, past_key_values=out.past_key_values, **how)
    assert len(turns) == 1

    class Hears:
        heard = 0

        def begin(self, prompt, rows):
            self.heard += 1

        def round(self, context): ...

        def end(self, prompt, images, context): ...

    listener = Hears()
    mmspec.enable_speculation(model, AUTO, drafter=small, listener=listener)
    for _ in range(4):
        model.generate(ids, **how)
    assert listener.heard == 4
    assert len(turns) == 1


def test_a_head_and_pictures(turns):
    """Half as far, and plain decoding, which asks for no head."""
    model = made("llava").double()
    inputs = {
        n: x.double() if x.is_floating_point() else x for n, x in asked(model, [1, 2]).items()
    }
    how = dict(max_new_tokens=NEW, do_sample=False)
    plain = model.generate(**inputs, **how)
    config = SpecConfig("medusa", length="auto")
    mmspec.enable_speculation(model, config, head=tiny_head("medusa", model, 3).double().eval())
    count, methods = len(choices_of(config, "vlm")), []
    for _ in range(count):
        assert torch.equal(model.generate(**inputs, **how), plain)
        methods.append(model.speculation_stats.method)
    assert methods == ["medusa"] * (count - 1) + ["plain"]


def test_what_changes_the_answer_stays_in_all_choices(models, turns):
    """The target's cache that forgets; and the drafter's own inputs, which plain has no use for."""
    model, small = models
    keeps = dict(target_cache="snapkv", target_cache_keep=0.4, cache_window=2)
    how = dict(max_new_tokens=8, do_sample=False)
    mmspec.enable_speculation(model, SpecConfig("plain", **keeps))
    plain = model.generate(**ragged(), **how)
    mmspec.enable_speculation(model, AUTO.replace(**keeps), drafter=small)
    for _ in range(4):
        assert torch.equal(model.generate(**ragged(), **how, drafter_inputs=ragged()), plain)
        assert model.speculation_stats.contract == "lossy"
    assert model.speculation_stats.method == "plain"


def test_what_a_call_takes_wrongly_is_said_as_ever(models):
    model, small = models
    mmspec.enable_speculation(model, AUTO, drafter=small)
    with pytest.raises(InputError, match="beam"):
        model.generate(**ragged(), max_new_tokens=2, num_beams=2)
    with pytest.raises(InputError, match="nonsense"):
        model.generate(**ragged(), max_new_tokens=2, nonsense=2)
    with pytest.raises(InputError, match="needs a draft model"):
        mmspec.enable_speculation(model, AUTO)
