"""Drafting ahead is exact at any temperature, and the same wherever it is done."""

from __future__ import annotations

import logging
import os
import signal
from collections import Counter

import pytest
import torch
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    categorical,
    distance,
    one_hot,
    outputs,
    whole_loop,
)

from mmspec.draft.ahead import AheadDrafter
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.accept.guess import verify_guessed
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ACCEPT, ProductionCoins
from mmspec.engine.draft import Context, Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
PLACES = (
    "here",
    "thread",
    pytest.param("process", marks=needs_fork),
)


# --- the guess ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", [TokenRule, BlockRule])
@pytest.mark.parametrize("drafted", [0, 1, 2])
def test_a_guess_stands_as_often_as_it_can(rule, drafted):
    """What is emitted has the target's law, and the guess stands with 1 less the two laws' TV."""
    table, model = Table(3, 40), Table(3, 5)

    def one(coins, rows):
        context = Context.empty(rows, 8)
        TableTarget(table).start(rows)
        prefix, laws, tokens = [()] * rows, [], []
        for _ in range(drafted + 1):
            laws.append(torch.tensor([model(p) for p in prefix], dtype=torch.float64))
            tokens.append(coins.draw(laws[-1]))
            prefix = [(*p, t) for p, t in zip(prefix, tokens[-1].tolist(), strict=True)]
        chain, q = torch.stack(tokens, 1), torch.stack(laws, 1)
        draft = Draft(chain[:, :drafted], torch.full((rows,), drafted), Categorical(q[:, :drafted]))
        guess = Draft(chain[:, drafted:], torch.ones(rows).long(), Categorical(q[:, drafted:]))
        scores = TableTarget(table).score(context, draft)
        verdict = verify_guessed(rule(), draft, guess, scores, coins)
        assert torch.equal(verdict.counts, verdict.accepted + 1)
        assert verdict.emitted.shape == (rows, drafted + 1)
        ends = verdict.emitted.gather(1, verdict.accepted[:, None])
        assert torch.equal(ends, verdict.last)
        stood = (verdict.accepted == drafted) & (verdict.last == guess.tokens)[:, 0]
        return [
            (tuple(tokens[:count]), bool(stands))
            for tokens, count, stands in zip(
                verdict.emitted.tolist(), verdict.counts.tolist(), stood, strict=True
            )
        ]

    found = enumerate_law(one)
    # a shorter output goes on by the target's own law
    whole: dict = {}
    for (tokens, _), probability in found.items():
        law = {tokens: probability}
        while min(map(len, law)) < drafted + 1:
            law = {(*t, x): p * q for t, p in law.items() for x, q in enumerate(table(t)) if q}
        for t, p in law.items():
            whole[t] = whole.get(t, 0) + p
    assert distance(whole, table.joint(drafted + 1)) < EXACT
    if not drafted:
        overlap = sum(map(min, zip(table(()), model(()), strict=True)))
        assert abs(sum(p for (_, stood), p in found.items() if stood) - overlap) < EXACT


def test_rows_of_any_length_and_without_a_guess():
    """Each row's guess is behind its own draft; a row without one has the rule's own verdict."""
    p = torch.tensor([[one_hot(1, 3), one_hot(2, 3), one_hot(0, 3)]], dtype=torch.float64)
    draft = Draft(torch.tensor([[1, 2], [1, 0], [0, 0]]), torch.tensor([2, 1, 0]), OneHot())
    guess = Draft(torch.tensor([[0], [2], [1]]), torch.tensor([1, 1, 0]), OneHot())
    coins = ProductionCoins([1, 2, 3]).round(0)[1]
    verdict = verify_guessed(TokenRule(), draft, guess, Scores(p.expand(3, -1, -1)), coins)
    assert verdict.accepted.tolist() == [2, 1, 0]
    assert verdict.counts.tolist() == [3, 2, 1]
    assert verdict.last[:, 0].tolist() == [0, 2, 1]
    kept = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
    assert [row[:count] for row, count in kept] == [[1, 2, 0], [1, 2], [1]]


def test_chosen_tokens_in_front_of_a_drawn_guess():
    """A chain with a law of one kind and a guess with the other are judged as both drawn."""
    table = Table(3, 40)
    scores = torch.tensor([[table(()), table((1,))]], dtype=torch.float64)
    tokens, ones = torch.tensor([[1]]), torch.tensor([1])
    guess_law = torch.tensor([[[0.5, 0.25, 0.25]]], dtype=torch.float64)
    laws = {}
    for law in (OneHot(), categorical([one_hot(1, 3)], 3)):

        def judged(coins, rows, law=law):
            law = law if isinstance(law, OneHot) else Categorical(law.probs.expand(rows, -1, -1))
            guessed = coins.draw(guess_law[:, 0].expand(rows, -1))[:, None]
            draft = Draft(tokens.expand(rows, -1), ones.expand(rows), law)
            guess = Draft(guessed, ones.expand(rows), Categorical(guess_law.expand(rows, -1, -1)))
            verdict = verify_guessed(
                TokenRule(), draft, guess, Scores(scores.expand(rows, -1, -1)), coins
            )
            pairs = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
            return [tuple(emitted[:count]) for emitted, count in pairs]

        laws[type(law)] = enumerate_law(judged)
    assert distance(laws[OneHot], laws[Categorical]) < EXACT
    first = {(x,): p for x, p in enumerate(table(())) if x != 1 and p}
    both = {(1, x): table(())[1] * p for x, p in enumerate(table((1,))) if p}
    assert distance(laws[OneHot], first | both) < EXACT


def test_a_tree_has_no_guess():
    tree = Draft(
        torch.tensor([[0, 1]]),
        torch.tensor([2]),
        categorical([one_hot(0, 3), one_hot(1, 3)], 3),
        parents=torch.tensor([[-1, -1]]),
    )
    guess = Draft(torch.tensor([[0]]), torch.tensor([1]), OneHot())
    scores = Scores(torch.full((1, 3, 3), 1 / 3))
    with pytest.raises(ContractError, match="judges chains; this draft is a tree"):
        verify_guessed(TokenRule(), tree, guess, scores, ProductionCoins([0]).round(0)[1])


# --- the loop -------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("gamma", "limit"), [(1, 5), (2, 4), (3, 4)])
@pytest.mark.parametrize("rule", [TokenRule, BlockRule])
def test_joint_law_of_the_whole_loop(gamma, limit, rule):
    target, model = Table(2, 344), Table(2, 186)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: AheadDrafter(TableModel(model)),
        rule(),
        ConstantLength(gamma),
        at_once=1,
    )
    assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.slow
def test_joint_law_with_three_tokens_an_end_and_a_changing_length():
    target, model = Table(3, 40), Table(3, 5)
    law = whole_loop(
        4,
        TableTarget(target),
        lambda: AheadDrafter(TableModel(model)),
        length=HeuristicLength(1, 3),
        eos=1,
        at_once=1,
    )
    assert distance(law, target.joint(4, eos=1)) < EXACT


def test_what_was_drawn_for_other_tokens_must_not_stay():
    """A drafter that keeps its tokens though the guess before them fell is found out."""

    class Careless(AheadDrafter):
        def observe(self, context, draft, scores, verdict):
            super().observe(context, draft, scores, verdict)
            if self._drawn is not None:
                self._left = [max(0, n - 1) for n in self._counts]
                self._drawn = (self._drawn[0], self._drawn[1].fill_(0.5), self._drawn[2])

    target, model = Table(2, 344), Table(2, 186)
    law = whole_loop(4, TableTarget(target), lambda: Careless(TableModel(model)))
    assert distance(law, target.joint(4)) > 1e-3


@pytest.mark.slow
def test_coins_that_two_calls_share_are_seen():
    """The authors' first code: the guess that stands and the token after it share a coin."""

    class Shared(ProductionCoins):
        def uniform(self, number, purpose, start, count):
            return super().uniform(0 if purpose == ACCEPT else number, purpose, start, count)

    target, model, rows = Table(2, 344), Table(2, 186), 12_000
    laws = []
    for kind in (ProductionCoins, Shared):
        parts = TableTarget(target), AheadDrafter(TableModel(model)), TokenRule()
        engine = Engine(*parts, ConstantLength(2), kind([*range(rows)]))
        found = outputs(run(engine, rows, 3, SpecStats()))
        laws.append({text: n / rows for text, n in Counter(found).items()})
    assert distance(laws[0], target.joint(3)) < 0.02
    assert distance(laws[1], target.joint(3)) > 0.04


def generated(drafter, seeds, target, limit=24, gamma=3, at_once=None, temperature=1.0):
    stats = SpecStats()
    rule = TokenRule() if temperature else GreedyRule()
    engine = Engine(target, drafter, rule, ConstantLength(gamma), ProductionCoins(seeds))
    return outputs(run(engine, len(seeds), limit, stats, at_once=at_once)), stats


def test_greedy_text_is_the_targets_and_one_draft_goes_on():
    """A drafter that knows the target drafts in one piece: γ + 1 tokens a call, after the first."""
    table = Table(4, 3, Warp(0.0))
    out, stats = generated(
        AheadDrafter(TableModel(table)), [0, 1], TableTarget(table), 26, 4, temperature=0.0
    )
    assert out == [table.greedy(26)] * 2
    assert stats.calls == [6, 6]  # one token, then five a call
    assert stats.rounds == [0, *[4] * 5]  # of which four are read: the guess is not
    assert not stats.alone  # the first call judged a guess
    assert stats.drafted == stats.accepted == [26, 26]  # with the guess of every call
    assert stats.judged_at == stats.accepted_at == [12, 10, 10, 10, 10]


def test_guesses_are_counted_with_the_drafts():
    """Against what the rule was shown and said; a guess behind the end of a row did not stand."""
    rounds, stats = [], SpecStats()

    class Watched(TokenRule):
        def verify(self, draft, scores, coins):
            verdict = super().verify(draft, scores, coins)
            rounds.append((draft.lengths.tolist(), verdict.accepted.tolist()))
            return verdict

    def told(context):
        rounds[-1] += (list(context.emitted), context.drafted())
        return False

    drafter = AheadDrafter(TableModel(Table(3, 5)))
    how = ConstantLength(3), ProductionCoins([*range(8)])
    engine = Engine(TableTarget(Table(3, 40)), drafter, Watched(), *how, (0,))
    run(engine, 8, 24, stats, on_round=told)
    drafted, accepted, reached, stood, cut = [0] * 8, [0] * 8, [0] * 4, [0] * 4, 0
    for lengths, kept, emitted, shown in rounds:
        for row, (n, k, count) in enumerate(zip(lengths, kept, emitted, strict=True)):
            if count:
                drafted[row], accepted[row] = drafted[row] + n, accepted[row] + min(k, count)
                reached = [r + (place < min(n, count)) for place, r in enumerate(reached)]
                stood = [s + (place < min(k, count)) for place, s in enumerate(stood)]
                assert sum(shown[row]) == min(k, count)
                cut += count < k
    assert cut  # the end fell into some drafts
    assert (stats.drafted, stats.accepted) == (drafted, accepted)
    assert (stats.judged_at, stats.accepted_at) == (reached, stood)


def test_rows_do_not_depend_on_their_neighbours():
    target, model = Table(3, 40), Table(3, 5)
    seeds = [5, 6, 7, 8]
    together, _ = generated(AheadDrafter(TableModel(model)), seeds, TableTarget(target))
    alone = [
        generated(AheadDrafter(TableModel(model)), [seed], TableTarget(target))[0][0]
        for seed in seeds
    ]
    assert together == alone


class SeatedTarget(TableTarget):
    def seat(self, context, rows):
        """Hold nothing."""


class SeatedModel(TableModel):
    def seat(self, context, rows):
        for row in rows:
            self.seen[row] = []


@pytest.fixture
def threads():
    """Three threads, of which processes may take some."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield 3
    torch.set_num_threads(before)


@pytest.mark.parametrize("at_once", [None, 2])
@pytest.mark.parametrize("place", PLACES)
def test_the_place_changes_nothing(place, at_once, threads):
    """Nor does it when samples take the rows of others."""
    target, model = Table(3, 40), Table(3, 5)
    seeds = [1, 2, 3, 4, 5]
    drafter = AheadDrafter(SeatedModel(model), place)
    out, stats = generated(drafter, seeds, SeatedTarget(target), at_once=at_once)
    there, _ = generated(AheadDrafter(TableModel(model)), seeds, TableTarget(target))
    assert out == there
    assert sum(stats.accepted) > 0
    assert torch.get_num_threads() == threads


def test_fewer_calls_than_the_plain_loop_and_no_more_tokens_read_than_by_drafts():
    target, model = Table(3, 7), Table(3, 7, Warp(1.3))
    ahead, own = (
        generated(kind(TableModel(model)), [*range(20)], TableTarget(target), 60)[1]
        for kind in (AheadDrafter, ModelDrafter)
    )
    assert sum(ahead.calls) < 20 * 60 * 0.6
    # one row less a call: the guess is judged and not read
    assert sum(ahead.target_tokens) / sum(ahead.calls) < sum(own.target_tokens) / sum(own.calls)


# --- faults ---------------------------------------------------------------------------------------


class Broken(TableModel):
    """Raises, or ends its process, after some tokens."""

    def __init__(self, table, dies=False):
        super().__init__(table)
        self.calls, self.dies = 0, dies

    def extend(self, tokens, start, draft=None):
        self.calls += 1
        if self.calls > 4:
            if self.dies:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OverflowError("too much")
        return super().extend(tokens, start, draft)


@pytest.mark.parametrize("place", PLACES)
def test_a_drafter_that_fails_is_left_alone(place, caplog):
    target = Table(3, 7)
    guard = GuardedDrafter(AheadDrafter(Broken(Table(3, 8)), place), 3, 8)
    with caplog.at_level(logging.WARNING):
        out, _ = generated(guard, [1, 2], TableTarget(target))
    assert [len(row) for row in out] == [24, 24]
    assert "OverflowError: too much" in guard.fault
    assert sum("decoding goes on without it" in r.message for r in caplog.records) == 1


@needs_fork
def test_a_process_that_dies_is_left_alone(threads):
    guard = GuardedDrafter(AheadDrafter(Broken(Table(3, 8), dies=True), "process"), 3, 8)
    out, _ = generated(guard, [1, 2], TableTarget(Table(3, 7)))
    assert [len(row) for row in out] == [24, 24]
    assert "process beside is gone" in guard.fault
    assert torch.get_num_threads() == threads


@pytest.mark.slow
@pytest.mark.parametrize("broken", [0, 2])
def test_laws_that_are_none_do_not_change_the_law(broken):
    """A NaN law is drawn from evenly, wherever it stands."""

    class Holed(TableModel):
        def extend(self, tokens, start, draft=None):
            laws = super().extend(tokens, start, draft)
            for row, seen in enumerate(self.seen):
                if len(seen) - 1 == broken:
                    laws[row, -1] = torch.nan
            return laws

    target = Table(2, 344)
    law = whole_loop(
        4,
        TableTarget(target),
        lambda: GuardedDrafter(AheadDrafter(Holed(Table(2, 186))), 2, 8),
        at_once=1,
    )
    assert distance(law, target.joint(4)) < EXACT
