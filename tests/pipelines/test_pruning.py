"""Drafts pruned by the target's first layers: outputs stay, and what is spared is counted."""

from __future__ import annotations

import pytest
import texts
import torch
import vlms

import mmspec
from mmspec import ImagePipeline, InputError, SpecConfig
from mmspec.models.guided import GuidedDecoder
from mmspec.models.pruning import Pruning


@pytest.fixture
def pipe(tiny_folder):
    made = ImagePipeline.from_pretrained(tiny_folder, dtype=torch.float64)
    made.set_progress_bar_config(disable=True)
    return made


def drawn(pipe, temperature: float, **call):
    seeds = [torch.Generator().manual_seed(n) for n in range(3)]
    told = {"output_type": "tokens", "num_images_per_prompt": 3, "generator": seeds, **call}
    out = pipe("a photo of a red circle", temperature=temperature, **told)
    return out.images.tolist(), out.stats


@pytest.mark.parametrize("least", [0.0, 0.02, 0.1, 1.0])
@pytest.mark.parametrize("method", ["draft", "pearl", "prompt-lookup", "draft[length=heuristic]"])
def test_greedy_pictures_are_the_plain_ones(pipe, method, least):
    pipe.enable_speculation("plain")
    plain, _ = drawn(pipe, 0)
    name, _, rest = method.partition("[")
    own = f"rule=restricted,prune_layers=1,prune_probability={least}"
    pipe.enable_speculation(f"{name}[{own}{',' + rest if rest else ']'}")
    same, stats = drawn(pipe, 0)
    assert same == plain
    assert (stats.contract, stats.fault) == ("exact", None)
    if least == 0:
        assert stats.spared == 0
    if least == 1:  # all of it
        assert stats.spared > 0.2
        assert stats.as_dict()["spared"] == stats.spared


def test_with_nothing_pruned_it_is_the_token_rule(pipe):
    found = []
    for name in ("draft", "draft[rule=restricted,prune_layers=1,prune_probability=0]"):
        pipe.enable_speculation(name)
        found.append(drawn(pipe, 1.0))
    assert found[0][0] == found[1][0]
    assert found[0][1].accepted == found[1][1].accepted
    assert found[1][1].spared == 0


def test_too_few_layers_are_told_at_once():
    """Before anything is generated, and in the words of who asked."""
    words = texts.tokenizer()
    small = texts.model(words)
    layers = small.config.num_hidden_layers
    method = f"draft[rule=restricted,prune_layers={layers}]"
    with pytest.raises(InputError, match=f"below the target's {layers} layers"):
        mmspec.enable_speculation(small, method, texts.model(words, seed=1))
    with pytest.raises(InputError, match="drafts from the target's laws behind all of them"):
        SpecConfig("spatial-sd", rule="restricted").resolve("image")


def test_what_is_counted_is_what_is_read(pipe, monkeypatch):
    """Nodes of the first call and of the second, layers of each; the second reads no more rows
    than the longest draft that is left."""
    calls, extend, pruned = [], GuidedDecoder.extend, []
    score = Pruning.score

    def extended(self, tokens, start, draft=None, use=None):
        calls.append((tokens.shape[1], None if use is None else {*map(len, use)}))
        return extend(self, tokens, start, draft, use)

    def scored(self, model, context, draft):
        before = len(calls), self.run, self.whole
        scores = score(self, model, context, draft)
        if not draft.nodes:
            assert [use for _, use in calls[before[0] :]] == [None]
            return scores
        (first, layers), (second, whole) = calls[before[0] :]
        assert (layers, whole, first) == ({1}, None, draft.nodes + 1)
        if not any(context.finished):
            assert self.whole - before[2] == model.layers * int((draft.lengths + 1).sum())
        early = self.run - before[1] - int((draft.lengths + 1).sum())
        pruned.append(draft.nodes + 1 - second)
        if not any(context.finished):
            assert early <= (model.layers - 1) * second * len(draft.tokens)
        assert not scores.laws[:, second:].any()
        assert scores.laws.shape[1] == draft.nodes + 1
        return scores

    monkeypatch.setattr(GuidedDecoder, "extend", extended)
    monkeypatch.setattr(Pruning, "score", scored)
    pipe.enable_speculation("draft[rule=restricted,prune_layers=1,prune_probability=0.1]")
    _, stats = drawn(pipe, 1.0)
    assert max(pruned) > 0
    assert 0 < stats.spared < 1


def test_text_and_pictures_in_it():
    words = texts.tokenizer()
    text = mmspec.TextPipeline(texts.model(words), words, drafter=texts.model(words, seed=1))
    call = {"max_new_tokens": 16, "temperature": 0}
    text.enable_speculation("plain")
    plain = text(["the cat saw the", "the dog"], **call).tokens
    for method in ("draft", "prompt-lookup", "early-exit"):
        text.enable_speculation(f"{method}[rule=restricted,prune_probability=0.01]")
        out = text(["the cat saw the", "the dog"], **call)
        assert out.tokens == plain
        assert out.stats.fault is None
    model = vlms.made("llava")
    inputs = vlms.asked(model, [1, 2, 0])
    theirs = model.generate(**inputs, max_new_tokens=12, do_sample=False)
    config = SpecConfig("prompt-lookup", rule="restricted", prune_probability=0.05)
    mmspec.enable_speculation(model, config)
    assert torch.equal(model.generate(**inputs, max_new_tokens=12, do_sample=False), theirs)
    with pytest.raises(InputError, match="leaves pruned tokens unread, and here a logits"):
        model.generate(**inputs, max_new_tokens=12, do_sample=False, repetition_penalty=1.2)


def test_what_does_not_go_together(pipe):
    with pytest.raises(InputError, match="drafts from the target's laws behind all of them"):
        SpecConfig("sjd", rule="restricted")
    with pytest.raises(InputError, match="judges chains"):
        SpecConfig("tree", rule="restricted")
    pipe.enable_speculation("draft[rule=restricted,prune_layers=99]")
    with pytest.raises(InputError, match=r"prune_layers must be below the target's \d+ layers"):
        drawn(pipe, 0)
