"""Paths through a block: exact, the best of all, and no chance in them that a rule may count on."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EXACT, Table, TableTarget, context_at, distance, one_hot, outputs, whole_loop

from mmspec.draft.tree.block_paths import (
    BlockPathsDrafter,
    best_paths,
    candidates,
    smoothed,
    tree_of,
)
from mmspec.draft.tree.trigrams import Trigrams
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft
from mmspec.engine.laws import Categorical
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats

COINS = ProductionCoins([0]).round(0)[0]


class Blocks:
    """A block model whose laws lean on the last token and on the place in the block."""

    def __init__(self, vocab: int, size: int = 3, seed: int = 0) -> None:
        draw = torch.Generator().manual_seed(seed)
        self.laws = torch.rand(vocab, size, vocab, generator=draw, dtype=torch.float64).softmax(-1)

    def start(self, rows: int) -> None: ...

    def seat(self, context, rows) -> None: ...

    def block(self, context, drafted):
        assert not drafted.shape[1]  # one block a round
        return self.laws[context.last[:, 0]]


def drafter(vocab: int, **more) -> BlockPathsDrafter:
    return BlockPathsDrafter(Blocks(vocab), vocab, **more)


@pytest.mark.parametrize(
    ("vocab", "limit", "more"),
    [(2, 5, {}), pytest.param(3, 4, {}, marks=pytest.mark.slow)]
    + [
        (vocab, limit, more)
        for vocab, limit in ((2, 5), (3, 3))
        for more in ({"beam": 1, "weight": 1.0}, {"eos": (1,), "mass": 1.0})
    ],
)
def test_joint_law(vocab, limit, more):
    target = Table(vocab, 7)
    prompt = torch.tensor([[0, 1, 0, 0, 1, 1, 0, 1]])
    made = partial(drafter, vocab, prompt=prompt, **more)
    for length in (1, 3):
        law = whole_loop(
            limit, TableTarget(target), made, RecursiveRule(), ConstantLength(length), at_once=1
        )
        assert distance(law, target.joint(limit)) < EXACT


class Claimed(BlockPathsDrafter):
    """Says, as the paper does, that a path was drawn from the laws of its tokens."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if not draft.nodes:
            return Draft(draft.tokens, draft.lengths, draft.law)
        return Draft(draft.tokens, draft.lengths, Categorical(self.model.laws[context.last[:, 0]]))


def test_the_published_acceptance_changes_the_law():
    """p = q = (0.6, 0.4): the search always says 0, and 0 would always stand."""
    law = torch.tensor([0.6, 0.4], dtype=torch.float64)

    target = Table(2, 0)
    target._laws |= dict.fromkeys([(), (0,), (1,)], law.tolist())
    model = Blocks(2, 1)
    model.laws[:] = law
    for kind, rule, off in (
        (Claimed, TokenRule(), 0.4),
        (BlockPathsDrafter, RecursiveRule(), 0.0),
    ):
        made = partial(kind, model, 2, beam=1, weight=1.0)
        found = whole_loop(2, TableTarget(target), made, rule, ConstantLength(1))
        assert distance(found, target.joint(2)) == pytest.approx(off, abs=EXACT)


LAWS = st.lists(st.lists(st.integers(0, 4), min_size=3, max_size=3).filter(any), max_size=4)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(LAWS, st.sampled_from([0.0, 0.5, 1.0]), st.booleans())
def test_a_wide_beam_finds_the_best_paths(laws, weight, ends):
    """All paths through all candidates, ranked by their scores."""
    places = [
        candidates(
            *zip(
                *sorted(((t, n / sum(law)) for t, n in enumerate(law)), key=lambda one: -one[1]),
                strict=True,
            ),
            1.0,
        )
        for law in laws
    ]
    eos = frozenset({2} if ends else ())

    def expected(path):
        def share(token):
            return -0.1 * (token + 1) * (len(path) + 1) - 0.3 * (path[-1:] == (token,))

        return share

    scores: dict[tuple[int, ...], float] = {}
    for whole in itertools.product(*(dict(place).items() for place in places)):
        tokens, score = (), 0.0
        for token, own in whole:
            if tokens and tokens[-1] in eos:
                break
            score += weight * own + (1 - weight) * expected(tokens)(token)
            tokens = (*tokens, token)
        scores[tokens] = score
    scores.pop((), None)
    found = best_paths(places, expected, 100, weight, eos)
    assert sorted(found) == sorted(scores)
    assert [scores[path] for path in found] == pytest.approx(sorted(scores.values(), reverse=True))
    narrow = best_paths(places, expected, 2, weight, eos)
    assert len(narrow) == min(2, len(scores)) or not places


def test_candidates_have_a_mass_together():
    law = ([4, 2, 7, 1], [0.5, 0.3, 0.2, 0.0])
    assert [token for token, _ in candidates(*law, 0.8)] == [4, 2]
    assert [token for token, _ in candidates(*law, 0.81)] == [4, 2, 7]
    assert candidates(*law, 1.0)[0] == (4, math.log(0.5))
    assert [token for token, _ in candidates(*law, 0.0)] == [4]  # never none


def test_smoothing_is_a_law():
    counts = Trigrams()
    counts.learn([1, 2, 3, 1, 2, 3, 1, 2, 0], 0, 2)
    shares = [math.exp(smoothed(counts, (1, 2), 5)(token)) for token in range(5)]
    assert shares == pytest.approx([1.4 / 5, 0.4 / 5, 0.4 / 5, 2.4 / 5, 0.4 / 5])
    unseen = [math.exp(smoothed(counts, (4, 4), 5)(token)) for token in range(5)]
    assert unseen == pytest.approx([0.2] * 5)


def test_prefixes_of_paths_are_one():
    tree = tree_of([(1, 2, 3), (1, 2, 4), (5,), (1, 2)])
    assert tree == [(-1, 1), (0, 2), (1, 3), (1, 4), (-1, 5)]
    assert tree_of([]) == []


def test_the_text_chooses_among_likely_tokens():
    """Both tokens of the second place are likely; behind (0, 1) the text has always said 2."""
    model = Blocks(4, 2)
    model.laws[:, 0] = torch.tensor(one_hot(1, 4))
    model.laws[:, 1] = torch.tensor([0.0, 0.0, 0.4, 0.6])
    prompt = torch.tensor([[0, 1, 2, 0, 1, 2, 0]])
    for weight, token in ((1.0, 3), (0.5, 2)):
        made = BlockPathsDrafter(model, 4, beam=1, weight=weight, prompt=prompt)
        context = context_at((), 1, 8)
        made.start(context)
        draft = made.propose(context, [2], COINS)
        assert draft.tokens.tolist() == [[1, token]]
        assert draft.parents.tolist() == [[-1, 0]]


def test_rows_do_not_know_of_each_other():
    target = TableTarget(Table(4, 3))

    def engine(seeds):
        made = BlockPathsDrafter(Blocks(4), 4)
        return Engine(target, made, RecursiveRule(), ConstantLength(3), ProductionCoins(seeds))

    stats = SpecStats()
    together = outputs(run(engine(list(range(6))), 6, 24, stats))
    assert sum(stats.accepted) > 0
    for row in range(6):
        assert outputs(run(engine([row]), 1, 24, SpecStats())) == [together[row]]


def test_laws_that_are_none_are_told():
    model = Blocks(3, 2)
    model.laws[1, 1] = float("nan")
    made = BlockPathsDrafter(model, 3)
    context = context_at((1,), 1, 8)
    made.start(context)
    draft = made.propose(context, [2], COINS)
    assert draft.faulty.tolist() == [True]
