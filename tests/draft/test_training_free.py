"""Drafters that need no training: what they propose, against slow references."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EXACT, Table, TableTarget, context_at, distance, outputs, whole_loop

from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft, Scores, Verdict
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import advance, run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.methods.static_trees import RECYCLING_WIDTHS

COINS = ProductionCoins([0]).round(0)[0]


def looked_up(text: list[int], longest: int, shortest: int, budget: int) -> list[int]:
    """What follows the latest earlier occurrence of the longest matching suffix."""
    for n in range(longest, shortest - 1, -1):
        for j in range(len(text) - 1, n - 1, -1):
            if len(text) >= n and text[j - n : j] == text[-n:]:
                return [text[j + i % (len(text) - j)] for i in range(budget)]
    return []


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.lists(st.integers(0, 2), max_size=9), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_lookup_equals_a_search(texts, longest, shortest, budget):
    shortest = min(longest, shortest)
    context = Context.empty(len(texts), max(1, *map(len, texts)))  # no room behind the longest
    for row, text in enumerate(texts):
        context.tokens[row, : len(text)] = torch.tensor(text, dtype=torch.long)
    context.lengths = torch.tensor([len(text) for text in texts])
    context.base = context.lengths.tolist()
    draft = PromptLookupDrafter(longest, shortest).propose(context, [budget] * len(texts), COINS)
    for row, text in enumerate(texts):
        drafted = draft.tokens[row, : draft.lengths[row]].tolist()
        assert drafted == looked_up(text, longest, shortest, budget)
    if len(texts) == 1:  # a processor reads what is drafted for a row alone, filling too
        assert draft.nodes == int(draft.lengths)


def test_lookup_copies_from_the_prompt():
    drafter = PromptLookupDrafter(prompt=torch.tensor([[5, 6, 7, 8]]))
    draft = drafter.propose(context_at((1, 6), 1, 10), [3], COINS)
    assert draft.tokens[0, : draft.lengths[0]].tolist() == [7, 8, 1]


def test_recycling_joint_law():
    for vocab, limit in ((2, 4), (3, 3)):
        target = Table(vocab, 7)
        law = whole_loop(
            limit,
            TableTarget(target),
            lambda vocab=vocab: RecyclingDrafter(vocab, (2, 1)),
            rule=RecursiveRule(),
        )
        assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("nodes", [1, 3, 5, 80])
def test_the_published_tree_has_the_joint_law_too(nodes):
    """Of three tokens it is wide as these allow; lengths are short, so that all is enumerated."""
    target, widths = Table(3, 7), RECYCLING_WIDTHS[:2]
    law = whole_loop(
        3,
        TableTarget(target),
        lambda: RecyclingDrafter(3, widths, tree="recycling-80", nodes=nodes),
        rule=RecursiveRule(),
    )
    assert distance(law, target.joint(3)) < EXACT


class Watched(RecyclingDrafter):
    """Compares its table with one that is kept the slow way."""

    def start(self, context: Context) -> None:
        super().start(context)
        self.seen: list[dict[int, list[int]]] = [{} for _ in range(context.rows)]

    def propose(self, context, budget, coins) -> Draft:
        draft = super().propose(context, budget, coins)
        for row, count in enumerate(draft.lengths.tolist()):
            token = int(context.tokens[row, context.base[row] - 1])
            expected: list[int] = []
            level = [token]
            for width in self.shape.widths:
                level = [x for t in level for x in self.seen[row].get(t, [0, 0, 0])[:width]]
                expected += level
            assert draft.tokens[row, :count].tolist() == expected[:count]
        self.bases = list(context.base)
        return draft

    def observe(self, context, draft, scores, verdict) -> None:
        super().observe(context, draft, scores, verdict)
        for row, base in enumerate(self.bases):
            if context.base[row] == base:
                continue  # a finished row
            tokens = draft.tokens[row, : draft.lengths[row]].tolist()
            root = [int(context.tokens[row, base - 1])] if base else [None]
            for n, token in enumerate([*root, *tokens]):
                if token is not None:
                    best = scores.probs[row, n].topk(3).indices
                    self.seen[row][token] = best.tolist()


def test_recycling_remembers_the_last_runners_up():
    target = TableTarget(Table(6, 3))
    engine = Engine(
        target,
        Watched(6, (3, 2)),
        RecursiveRule(),
        ConstantLength(2),
        ProductionCoins(list(range(8))),
    )
    stats = SpecStats()
    together = outputs(run(engine, 8, 14, stats))
    assert sum(stats.accepted) > 0
    for row in range(8):
        engine.coins = ProductionCoins([row])
        assert outputs(run(engine, 1, 14, SpecStats())) == [together[row]]


def test_nothing_wrong_is_learnt_where_a_text_ends():
    """Token 4 ends it, within a draft: what stood in front of the draft is still token 3."""
    drafter, context = RecyclingDrafter(6, (1, 1)), Context.empty(1, 8)
    drafter.start(context)
    context.tokens[0, :3] = torch.tensor([1, 2, 3])
    context.lengths, context.base = context.lengths + 3, [3]
    chain = torch.tensor([[-1, 0]])
    draft = Draft(torch.tensor([[4, 5]]), torch.tensor([2]), OneHot(), chain, bounds=(2, 1))
    scores = Scores(torch.eye(6, dtype=torch.float64)[[4, 5, 0]][None])
    emitted, path = torch.tensor([[4, 5, 0]]), torch.tensor([[0, 1]])
    verdict = Verdict(torch.tensor([2]), emitted, torch.tensor([[0]]), torch.tensor([3]), path=path)
    advance(context, draft, scores, verdict, eos=4)
    drafter.observe(context, draft, scores, verdict)
    assert drafter._table[0, [3, 1], 0].tolist() == [4, 0]
