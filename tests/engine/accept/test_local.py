"""Local verification: equal to its twin; what stands, what falls with it, what is certain."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import EXACT, categorical, chains, close, one_hot, rule_law

from mmspec.engine.accept import local_naive
from mmspec.engine.accept.local import LocalRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, Gaussian, OneHot, Opaque
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.eval.measure.variation import Step, emitted_law, variation

SEEN = 1e-3
NEAR = torch.tensor([[1, 2], [0, 4], [3, 0], [2, 4], [1, 3]])  # two neighbours of each of 5 codes


def near_codes(vocab: int) -> torch.Tensor:
    return NEAR[:vocab].clamp_max(vocab - 1)


def verdict_law(rule, drafted, p, law, first=0, filling=0) -> dict:
    """The enumerated law of the tokens that one verdict puts in the draft's places."""

    def verify(coins, rows):
        nodes = torch.tensor([*drafted, *[0] * filling]).expand(rows, -1)
        positions = (torch.arange(nodes.shape[1]) + first).expand(rows, -1)
        draft = Draft(nodes, torch.full((rows,), len(drafted)), law, positions=positions)
        if isinstance(law, Categorical):
            extra = law.probs[:, -1:].expand(-1, filling, -1)
            draft.law = Categorical(torch.cat([law.probs, extra], 1).expand(rows, -1, -1))
        laws = torch.tensor(p + p[-1:] * filling, dtype=torch.float64).expand(rows, -1, -1)
        verdict = rule.verify(draft, Scores(laws), coins.round(0)[1])
        assert verdict.counts.tolist() == [len(drafted)] * rows
        assert torch.equal(verdict.accepted, verdict.keep.sum(1))
        kept = verdict.keep
        assert torch.equal(verdict.emitted[:, :-1][kept], nodes[kept])
        assert not kept[:, len(drafted) :].any()
        assert torch.equal(verdict.last[:, 0], verdict.emitted[:, len(drafted) - 1])
        return [tuple(tokens[: len(drafted)]) for tokens in verdict.emitted.tolist()]

    return enumerate_law(verify)


# --- fast = naive ---------------------------------------------------------------------------------

KNOBS = st.tuples(
    st.sampled_from([0.0, 0.05, 0.2, 0.5, 0.9, 1.0]),
    st.sampled_from(["threshold", "ratio"]),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 3),
    st.integers(0, 3),
)


@settings(max_examples=250, deadline=None, derandomize=True)
@given(chains().filter(lambda c: c[1]), KNOBS, st.integers(0, 1))
def test_law_equals_naive(chain, knobs, filling):
    vocab, drafted, p, q = chain
    threshold, criterion, radius, pooled, stride, first = knobs
    if criterion == "ratio":
        threshold = max(threshold, 1e-9)
    table = near_codes(vocab)
    rule = LocalRule(stride, threshold, table if pooled else None, radius, criterion)
    ours = verdict_law(rule, drafted, p, categorical(q, vocab), first, filling)
    cells = [divmod(first + n, stride) for n in range(len(drafted))]
    ids = table.tolist() if pooled else [[]] * vocab
    twin = local_naive.local_rule(drafted, cells, p, q, threshold, ids, radius, criterion)
    assert close(ours, twin)
    assert sum(ours.values()) == pytest.approx(1, abs=EXACT)


# --- what the laws promise ------------------------------------------------------------------------


@pytest.mark.slow
@settings(max_examples=100, deadline=None, derandomize=True)
@given(chains().filter(lambda c: c[1]), st.integers(0, 2), st.integers(1, 3))
def test_every_node_has_its_law_by_the_ratio(chain, radius, stride):
    """At θ = 1 with nothing pooled, over the draws of the draft: whatever falls with what."""
    vocab, drafted, p, q = chain
    n = len(drafted)

    def play(coins, rows):
        law = categorical(q, vocab, rows)
        positions = torch.arange(n).expand(rows, -1)
        draft = Draft(coins.draw(law.probs), torch.full((rows,), n), law, positions=positions)
        scores = Scores(torch.tensor(p, dtype=torch.float64).expand(rows, -1, -1))
        verdict = LocalRule(stride, 1.0, None, radius, "ratio").verify(draft, scores, coins)
        return [tuple(tokens[:n]) for tokens in verdict.emitted.tolist()]

    joint = enumerate_law(play)
    for node in range(n):
        for token in range(vocab):
            mass = sum(chance for out, chance in joint.items() if out[node] == token)
            assert mass == pytest.approx(p[node][token], abs=EXACT)


P = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64)
Q = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)


def test_single_node_of_the_report():
    """`eval.variation` sees an exact node, and how far the knobs bend it."""
    exact = LocalRule(4, 1.0, None, 0, "ratio")
    law = emitted_law(exact, Q, P)
    assert all(abs(law.get(i, 0) - float(P[i])) < EXACT for i in range(4))
    assert variation(exact, Step(Q, P)) < EXACT
    for bent in (
        LocalRule(4, 0.5, None, 0, "ratio"),
        LocalRule(4, 1.0, near_codes(4), 0, "ratio"),
        LocalRule(4, 0.25, None, 0, "threshold"),
    ):
        assert variation(bent, Step(Q, P)) > SEEN


def test_threshold_of_a_single_node():
    """Tokens of P(x) ≥ θ stand, and those of no probability never."""
    law = emitted_law(LocalRule(4, 0.25, None, 0, "threshold"), Q, P)
    stays = {0: 0.1, 1: 0.2}  # 2 is too unlikely and 3 impossible: 0.7 is drawn from p
    for token in range(4):
        wanted = stays.get(token, 0.0) + 0.7 * float(P[token])
        assert law.get(token, 0.0) == pytest.approx(wanted, abs=EXACT)


@pytest.mark.parametrize("criterion", ["threshold", "ratio"])
@pytest.mark.parametrize("neighbours", [None, near_codes(3)], ids=["alone", "pooled"])
def test_what_the_target_cannot_emit_never_stands(criterion, neighbours):
    """Not at θ = 0 either, however likely its neighbours are."""
    p = [[0.0, 0.6, 0.4], one_hot(1, 3)]
    rule = LocalRule(2, 0.0, neighbours, 0, criterion)
    law = verdict_law(rule, [0], p, categorical([[1.0, 0.0, 0.0]], 3))
    assert close(law, {(1,): 0.6, (2,): 0.4})


def test_neighbours_add_up():
    """0.1 + 0.2 + 0.3 reach 0.6 and not 0.61."""
    p = [[0.1, 0.2, 0.3, 0.4, 0.0]]
    for threshold, stands in ((0.59, True), (0.61, False)):
        rule = LocalRule(2, threshold, NEAR, 0)
        law = verdict_law(rule, [0], p, OneHot())
        assert close(law, {(0,): 1.0} if stands else {(i,): p[0][i] for i in range(4)})


@pytest.mark.parametrize("radius", [0, 1, 2])
def test_what_is_certain_stands(radius):
    """An end of line between nodes that fall is not drawn again, and is no danger to others."""
    p = [[0.5, 0.5, 0.0], one_hot(2, 3), [0.5, 0.5, 0.0]]
    keep = keeps(LocalRule(2, 0.6, None, radius), [0, 2, 1], p)
    assert keep == [False, True, False]


def keeps(rule, drafted, p, first=0) -> list[bool]:
    """Which nodes of a chain stand, for rules that need no coin for that."""
    nodes = torch.tensor([drafted])
    positions = torch.arange(len(drafted))[None] + first
    draft = Draft(nodes, torch.tensor([len(drafted)]), OneHot(), positions=positions)
    scores = Scores(torch.tensor([p], dtype=torch.float64))
    return rule.verify(draft, scores, ProductionCoins([0]).round(0)[1]).keep[0].tolist()


@pytest.mark.parametrize("radius", [0, 1, 2, 3])
@pytest.mark.parametrize("first", [0, 1, 3, 6])
@pytest.mark.parametrize("stride", [1, 3, 5])
def test_dilation_of_drafts_anywhere(stride, first, radius):
    """Also of one that begins inside a row: what is near is near in the picture, not in the text.

    One node in eleven falls, and with it those at most `radius` rows and columns away.
    """
    for bad in range(11):
        p = [[0.1, 0.9] if n == bad else [0.9, 0.1] for n in range(11)]
        keep = keeps(LocalRule(stride, 0.5, None, radius), [0] * 11, p, first)
        row, column = divmod(first + bad, stride)
        for n in range(11):
            r, c = divmod(first + n, stride)
            assert keep[n] == (max(abs(r - row), abs(c - column)) > radius)


def test_ragged_rows_are_those_alone():
    """Rows of other lengths, places and laws; one without a draft draws one token of its own."""
    torch.manual_seed(0)
    lengths, first = [5, 2, 0, 7], [0, 4, 9, 2]
    p = torch.rand(4, 8, 5, dtype=torch.float64).softmax(-1)
    tokens = torch.randint(5, (4, 7))
    rule = LocalRule(3, 0.55, NEAR, 1)
    positions = torch.arange(7) + torch.tensor(first)[:, None]

    def verdict(rows, width):
        draft = Draft(
            tokens[rows, :width],
            torch.tensor(lengths)[rows],
            Opaque(),
            positions=positions[rows, :width],
        )
        coins = ProductionCoins([r + 7 for r in rows]).round(3)[1]
        return rule.verify(draft, Scores(p[rows, : width + 1]), coins)

    together = verdict([0, 1, 2, 3], 7)
    assert together.counts.tolist() == [5, 2, 1, 7]
    assert together.keep[2].sum() == 0
    assert 0 < together.keep.sum() < 14
    for row, length in enumerate(lengths):
        alone = verdict([row], max(1, length))
        count = max(1, length)
        assert alone.counts.tolist() == [count]
        assert torch.equal(alone.emitted[0, :count], together.emitted[row, :count])
        assert torch.equal(alone.keep[0, :length], together.keep[row, :length])
        assert torch.equal(alone.last, together.last[row : row + 1])


def test_a_row_without_a_draft_follows_the_target():
    p = [[0.2, 0.5, 0.3], one_hot(0, 3)]

    def play(coins, rows):
        assert rows == 1
        draft = Draft(torch.zeros(1, 1, dtype=torch.long), torch.tensor([0]), OneHot())
        verdict = LocalRule(2, 0.5, None, 0).verify(draft, Scores(torch.tensor([p])), coins)
        return [tuple(verdict.emitted[0, :1].tolist())]

    law = enumerate_law(play, at_once=1)
    assert law == pytest.approx({(0,): 0.2, (1,): 0.5, (2,): 0.3})


def test_empty_drafts_are_plain_decoding():
    p = [[0.2, 0.5, 0.3]]
    assert close(rule_law([], p, OneHot(), LocalRule(2, 0.5)), {(i,): p[0][i] for i in range(3)})


# --- what it refuses ------------------------------------------------------------------------------


def small_draft(law=None, **fields) -> Draft:
    return Draft(torch.zeros(1, 2, dtype=torch.long), torch.tensor([2]), law or OneHot(), **fields)


@pytest.mark.parametrize(
    ("rule", "draft", "match"),
    [
        (LocalRule(2, 0.5, None, 0), small_draft(parents=torch.tensor([[-1, -1]])), "tree"),
        (LocalRule(2, 0.5, None, 1), small_draft(), "positions"),
        (LocalRule(2, 0.5, None, 0, "ratio"), small_draft(Opaque()), "Opaque"),
        (
            LocalRule(2, 0.5, None, 0, "ratio"),
            small_draft(Gaussian(torch.zeros(1), torch.ones(1))),
            "Gaussian",
        ),
    ],
)
def test_drafts_that_it_cannot_judge(rule, draft, match):
    laws = torch.full((1, 3, 4), 0.25)
    with pytest.raises(ContractError, match=match):
        rule.verify(draft, Scores(laws), ProductionCoins([0]).round(0)[1])


def test_it_is_called_lossy():
    assert LocalRule(2, 0.5).contract == "lossy"
    assert math.isclose(sum(P.tolist()), 1)
