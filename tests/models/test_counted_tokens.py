"""Filling of ragged drafts costs no work, and nothing else changes."""

from __future__ import annotations

import pytest
import torch

from mmspec.engine.draft import Context, Draft
from mmspec.engine.laws import OneHot
from mmspec.models.counted_tokens import ALL, CountedTokens
from mmspec.models.guided import GuidedDecoder
from mmspec.models.llama_layers import LlamaLayers
from mmspec.models.setting import Setting
from mmspec.models.target import TokenTarget, counts
from mmspec.models.transformers.prompted import prompted
from mmspec.models.transformers.tiny import tiny

PROMPT, LENGTHS = 6, [4, 0, 2]


def test_those_that_count_stand_side_by_side_and_go_back():
    some = CountedTokens(torch.tensor([[True, False], [True, True]]))
    x = torch.arange(8.0).view(4, 2)
    assert some.of(x).tolist() == x[[0, 2, 3]].tolist()
    assert some.spread(some.of(x)).tolist() == [[0, 1], [0, 0], [4, 5], [6, 7]]


def test_where_all_count_nothing_is_moved():
    x = torch.randn(6, 2)
    assert ALL.of(x) is ALL.spread(x) is x


def test_a_function_is_asked_about_those_alone():
    some, asked = CountedTokens(torch.tensor([[False, True], [True, False]])), []

    def doubled(x):
        asked.append(x.tolist())
        return torch.cat([x, x], -1)

    assert some.mapped(doubled, torch.tensor([[[1], [2]], [[3], [4]]])).tolist() == [
        [[0, 0], [2, 2]],
        [[3, 3], [0, 0]],
    ]
    assert asked == [[[2], [3]]]


def test_rows_that_are_over_do_not_count():
    """But for what every row reads once more: that stays in the cache."""
    context = Context.empty(3, 8)
    context.finished = [False, True, False]
    draft = Draft(torch.zeros(3, 2, dtype=torch.long), torch.tensor([2, 2, 1]), OneHot())
    assert counts(context, draft, 4).int().tolist() == [[1] * 4, [1, 0, 0, 0], [1, 1, 1, 0]]
    whole = Draft(torch.zeros(3, 2, dtype=torch.long), torch.tensor([2, 2, 2]), OneHot())
    assert counts(Context.empty(3, 8), whole, 4) is None
    alone = Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([1]), OneHot())
    assert counts(Context.empty(1, 8), alone, 4) is None


@torch.inference_mode()
def scored(ragged: bool, parents: torch.Tensor | None, monkeypatch):
    """Laws of ragged drafts, the cache behind them, and the tokens that layers were given."""
    decoder = prompted(tiny("llama", torch.float32))
    ids = torch.randint(3, 36, (3, PROMPT), generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, PROMPT, dtype=torch.bool)
    prompt = decoder.prompt(ids, mask, limit=12)
    decoder.place(prompt)
    setting = Setting(prompt.embedded, mask, None, lambda x: x.softmax(-1), 12, 0, 8)
    model = GuidedDecoder(decoder, setting)
    target, given = TokenTarget(model), []
    if not ragged:
        monkeypatch.setattr("mmspec.models.target.counts", lambda *told: None)
    of = CountedTokens.of

    def noted(self, x):
        given.append(len(found := of(self, x)))
        return found

    monkeypatch.setattr(CountedTokens, "of", noted)
    with decoder.repacked():
        assert isinstance(decoder._rearranged.layers, LlamaLayers)
        target.start(3)
        context = Context.empty(3, 12)
        given.clear()
        drafted = torch.arange(12).view(3, 4) % 7 + 3
        draft = Draft(drafted, torch.tensor(LENGTHS), OneHot(), parents=parents)
        laws = target.score(context, draft).probs
    keys = model.cache.data[..., : PROMPT + 4, :]
    monkeypatch.undo()
    return laws, keys, given


@pytest.mark.parametrize("tree", [False, True])
def test_ragged_drafts_are_read_without_their_filling(tree, monkeypatch):
    parents = torch.tensor([[-1, -1, 0, 1]]).expand(3, -1) if tree else None
    laws, keys, given = scored(True, parents, monkeypatch)
    whole, its_keys, all_given = scored(False, parents, monkeypatch)
    assert set(given) == {sum(LENGTHS) + 3}
    assert set(all_given) == {15}
    for row, length in enumerate(LENGTHS):
        assert torch.allclose(laws[row, : length + 1], whole[row, : length + 1], atol=1e-6)
        assert bool(torch.isfinite(laws[row]).all())
        end = PROMPT + length
        mine, theirs = keys[:, :, row, :, :end], its_keys[:, :, row, :, :end]
        assert torch.allclose(mine, theirs, atol=1e-6)


@torch.inference_mode()
def test_rows_that_are_over_keep_what_others_read_again():
    decoder = prompted(tiny("llama", torch.float32))
    mask = torch.ones(2, PROMPT, dtype=torch.bool)
    prompt = decoder.prompt(torch.arange(3, 3 + 2 * PROMPT).view(2, -1), mask, limit=12)
    decoder.place(prompt)
    model = GuidedDecoder(
        decoder, Setting(prompt.embedded, mask, None, lambda x: x.softmax(-1), 12, 0, 8)
    )
    model.stays, target = True, TokenTarget(model)
    with decoder.repacked():
        target.start(2)
        context = Context.empty(2, 12)
        context.tokens[:, :3] = torch.tensor([[4, 5, 6], [7, 8, 9]])
        context.base, context.lengths = [3, 3], torch.tensor([3, 3])
        context.last, context.finished = context.tokens[:, 2:3], [True, False]
        model.extend(torch.cat([context.last, context.tokens[:, :2]], 1), [-1, -1])
        before = model.cache.data[:, :, 0, :, : PROMPT + 2].clone()
        model.known = [0, 0]  # two tokens are read again
        target.score(context, Draft(torch.tensor([[3], [3]]), torch.tensor([0, 1]), OneHot()))
        assert torch.allclose(model.cache.data[:, :, 0, :, : PROMPT + 2], before, atol=1e-6)
