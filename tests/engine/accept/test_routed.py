"""Routed tokens: equal to the twin, the token rule where all ask; routers on numbers by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EXACT, categorical, chains, close, distance, one_hot

from mmspec.engine.accept import routed_naive, token_naive
from mmspec.engine.accept.routed import RoutedDraft, RoutedRule
from mmspec.engine.accept.verify_router import (
    BlockView,
    HysteresisRouter,
    NeverRouter,
    ScoreRouter,
    SpanRouter,
    UcbRouter,
    VerifyRouter,
    context_of,
    make_router,
)
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque
from mmspec.engine.proof.enumeration import enumerate_law

TRUST = st.lists(st.booleans(), min_size=3, max_size=3)


def rule_law(drafted, p, law, trusted, asks, temperature=1.0) -> dict:
    """The enumerated law of what one verdict emits."""

    def verify(coins, rows):
        nodes = torch.tensor(drafted).long().expand(rows, -1)
        own = Categorical(law.probs.expand(rows, -1, -1)) if isinstance(law, Categorical) else law
        draft = RoutedDraft(nodes, torch.full((rows,), len(drafted)), own)
        draft.asks = [asks] * rows
        draft.trusted = torch.tensor(trusted[: len(drafted)]).bool().expand(rows, -1)
        laws = torch.tensor(p, dtype=torch.float64).expand(rows, -1, -1)
        rule = RoutedRule(VerifyRouter(), temperature=temperature)
        verdict = rule.verify(draft, Scores(laws), coins.round(0)[1])
        assert torch.equal(verdict.counts, verdict.accepted + (1 if asks else 0))
        pairs = zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
        return [tuple(tokens[:count]) for tokens, count in pairs]

    return enumerate_law(verify)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(chains().filter(lambda chain: chain[1]), TRUST, st.booleans(), st.sampled_from([0.0, 1.0]))
def test_law_equals_naive(chain, trusted, asks, temperature):
    vocab, drafted, p, q = chain
    for law, own in (
        (categorical(q, vocab), q),
        (OneHot(), [one_hot(x, vocab) for x in drafted]),
    ):
        found = rule_law(drafted, p, law, trusted, asks, temperature)
        truth = routed_naive.routed_rule(drafted, p, own, trusted, asks, temperature == 0)
        assert close(found, truth)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_where_all_ask_and_nothing_is_trusted_it_is_the_token_rule(chain):
    vocab, drafted, p, q = chain
    law = categorical(q, vocab) if drafted else OneHot()
    assert close(
        rule_law(drafted, p, law, [False] * 3, True), token_naive.token_rule(drafted, p, q)
    )


def test_a_trusted_node_by_hand():
    """A step that trusts is off by the whole distance of the laws, one that asks by nothing."""
    p, q = [[0.25, 0.75], [0.5, 0.5]], [0.75, 0.25]
    first: dict[bool, dict[int, float]] = {}
    for trusted in (False, True):
        law = first.setdefault(trusted, {})
        for x, share in enumerate(q):
            out = rule_law([x], p, categorical([q], 2), [trusted], True)
            for tokens, mass in out.items():
                law[tokens[0]] = law.get(tokens[0], 0.0) + share * mass
    assert distance(first[False], dict(enumerate(p[0]))) < EXACT
    assert distance(first[True], dict(enumerate(p[0]))) == pytest.approx(0.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_rows_do_not_depend_on_their_neighbours(temperature):
    """Rows that ask beside rows that don't, and rows without a draft."""
    generator = torch.Generator().manual_seed(0)
    rows, nodes, vocab = 6, 3, 9
    p = torch.randn(rows, nodes + 1, vocab, generator=generator).softmax(-1)
    q = torch.randn(rows, nodes, vocab, generator=generator).softmax(-1)
    tokens = torch.distributions.Categorical(q).sample()
    tokens[5] = p[5, :nodes].argmax(-1)
    lengths, asks = torch.tensor([0, 1, 2, 3, 3, 3]), [True, False, True, False, True, True]
    trusted = torch.rand(rows, nodes, generator=generator) < 0.4
    trusted |= ~torch.tensor(asks)[:, None]
    rule, seen = RoutedRule(VerifyRouter(), temperature=temperature), set()
    for number in range(20):
        draft = RoutedDraft(tokens, lengths, Categorical(q))
        draft.asks, draft.trusted = asks, trusted
        coins = ProductionCoins([*range(rows)]).round(number)[1]
        together = rule.verify(draft, Scores(p), coins)
        for b in range(rows):
            draft = RoutedDraft(tokens[[b]], lengths[[b]], Categorical(q[[b]]))
            draft.asks, draft.trusted = [asks[b]], trusted[[b]]
            coins = ProductionCoins([b]).round(number)[1]
            alone = rule.verify(draft, Scores(p[[b]]), coins)
            count = int(alone.counts)
            assert int(together.counts[b]) == count
            assert torch.equal(together.emitted[b, :count], alone.emitted[0, :count])
            assert int(together.last[b]) == int(alone.emitted[0, count - 1])
            seen.add((b, count))
    assert {(1, 1), (3, 3)} < seen
    assert len(seen) > rows or temperature == 0


def test_other_drafts_are_refused():
    scores, coins = Scores(torch.full((1, 3, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    nodes, two = torch.zeros(1, 2).long(), torch.tensor([2])
    tree = Draft(nodes, two, OneHot(), torch.full((1, 2), -1))
    for draft, why in ((tree, "tree"), (Draft(nodes, two, Opaque()), "Opaque")):
        with pytest.raises(ContractError, match=why):
            RoutedRule(VerifyRouter()).verify(draft, scores, coins)


# --- routers --------------------------------------------------------------------------------------


def view(entropies=(0.0,), margins=None, confident=0, filled=0, size=4) -> BlockView:
    return BlockView(entropies, margins or [1.0] * len(entropies), confident, filled, size)


def test_scores_by_hand():
    """α = e^(−H): of entropies 0 and ln 2 they are 1 and ½; E[K] = 1 + ½ + ½ · 1."""
    seen = view((0.0, math.log(2), 0.0), confident=2)
    score = ScoreRouter("entropy", "static", 1.0, 1.0, 0.0).score(seen)
    assert score == pytest.approx(2.0 - 1)
    assert ScoreRouter("entropy", "dynamic", 1.5, 1.0, 0.0).score(seen) == pytest.approx(2 - 3)
    # twice the weight: ¼, so 1 + ¼ + ¼
    assert ScoreRouter("entropy", "static", 0.0, 2.0, 0.0).score(seen) == pytest.approx(1.5)
    # a lead of 0.05 is none: what follows can't stand
    margins = view((0.5, 0.5, 0.5), [0.06, 0.05, 0.9])
    assert ScoreRouter("margin", "static", 0.0, 1.0, 0.0).score(margins) == 1


@pytest.mark.parametrize("threshold", [0.99, 1.0, 1.01])
def test_a_threshold_is_reached(threshold):
    router = ScoreRouter("entropy", "static", 1.0, 1.0, threshold)
    assert router.verifies(0, view((0.0, 0.0))) == (threshold <= 1)


def test_hysteresis_by_hand():
    """On at 1, off below −5; between the two it does as before, row by row."""
    router = HysteresisRouter("entropy", "dynamic", 1.0, 1.0, 1.0, -5.0)
    router.start(2)
    # of one place that is sure: 1 − 1 · confident
    told = [(1, False), (0, True), (3, True), (6, True), (7, False), (1, False), (0, True)]
    for confident, verifies in told:
        assert router.verifies(0, view(confident=confident)) == verifies
    assert not router.verifies(1, view(confident=3))  # a row of its own
    router.seat([0])
    assert not router.verifies(0, view(confident=3))
    router.start(2)
    assert not router.verifies(0, view(confident=3))


def test_runs_and_the_two_that_look_at_nothing():
    for length in (1, 2, 3):
        seen = view((0.0,) * length)
        assert SpanRouter(2).verifies(0, seen) == (length >= 2)
        assert VerifyRouter().verifies(0, seen)
        assert not NeverRouter().verifies(0, seen)


def test_contexts_are_two_by_two_by_two():
    """Runs of 1 to 4 places are short up to 2; what is filled and entropies split at one half."""
    numbers = {}
    for run in (1, 2, 3, 4):
        for filled in (0, 1, 2, 3):
            for entropy in (0.0, 0.49, 0.5, 1.0):
                seen = view((entropy,) * run, filled=filled)
                numbers.setdefault((run > 2, filled >= 2, entropy >= 0.5), set()).add(
                    context_of(seen)
                )
    assert len(numbers) == 8
    assert all(len(own) == 1 for own in numbers.values())
    assert {number for own in numbers.values() for number in own} == set(range(8))
    assert context_of(view(size=1)) == 0


def test_the_bandit_by_hand():
    """Both actions are tried; then mean reward + β √(ln t / n); rewards are places a call."""
    router, seen = UcbRouter(1.0), view()
    router.start(2)
    assert router.verifies(0, seen)  # neither was tried: ties go to verifying
    router.learn(0, 4)  # two calls: a reward of 2
    assert not router.verifies(0, seen)
    router.learn(0, 1)  # one call: a reward of 1
    # t = 3 and 4: 2 + √ln 3 and 3 / 2 + √(ln 4 / 2) beat 1 + √ln t; t = 5: 4 / 3 + √(ln 5 / 3)
    # does not; t = 6: it does again, since the other was tried once more
    for verifies in (True, True, False, True):
        assert router.verifies(0, seen) == verifies
        router.learn(0, 2 if verifies else 1)  # a reward of 1
    key = context_of(seen), True
    assert router._value(0, key) == pytest.approx((2 + 3) / 4 + math.sqrt(math.log(6) / 4))
    other = view((1.0,))
    assert router.verifies(0, other)  # another context has seen nothing
    assert router.verifies(1, seen)  # nor has another row
    router.seat([0])
    assert router.verifies(0, seen)
    greedy = UcbRouter(0.0)
    greedy.start(1)
    for decoded in (4, 3):  # rewards 2 and 3
        greedy.verifies(0, seen)
        greedy.learn(0, decoded)
    assert not any(greedy.verifies(0, seen) for _ in range(20))


def test_names():
    numbers = dict(cost=1.0, beta=1.0, threshold=0.0, on=1.0, off=-5.0, least=2, explores=1.0)
    kinds = {
        "score": ScoreRouter,
        "hysteresis": HysteresisRouter,
        "span": SpanRouter,
        "ucb": UcbRouter,
        "always": VerifyRouter,
        "never": NeverRouter,
    }
    for name, kind in kinds.items():
        assert type(make_router(name, "entropy", "static", **numbers)) is kind
