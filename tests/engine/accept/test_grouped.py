"""GSD: equal to its twin, exact for groups of one, and never more than lossy for larger ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    categorical,
    chains,
    close,
    composed,
    distance,
    drafters,
    one_hot,
    rule_law,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.engine.accept import grouped_naive, token_naive
from mmspec.engine.accept.grouped import GroupedRule, ranking
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import (
    Categorical,
    ContractError,
    Gaussian,
    OneHot,
    Opaque,
    WithoutReplacement,
)
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.eval.measure.variation import Step, emitted_law, variation

SEEN = 1e-3
CODES = torch.tensor([[0.0, 0.1], [1.1, 0.0], [0.3, 0.2], [1.0, 1.3], [0.6, 0.5]]).double()


# --- fast = naive ---------------------------------------------------------------------------------


def tied_chain(seed: int) -> tuple:
    """Target laws of many equal entries and zeros, and drafts that may be any token."""
    rng = np.random.default_rng(seed)
    vocab, nodes = rng.integers(3, 6), rng.integers(1, 4)
    p = rng.integers(0, 4, (nodes + 1, vocab))
    p[:, 0] += p.sum(1) == 0
    q = rng.integers(1, 7, (nodes, vocab))
    drafted = rng.integers(0, vocab, nodes).tolist()
    return int(vocab), drafted, (p / p.sum(1)[:, None]).tolist(), (q / q.sum(1)[:, None]).tolist()


KNOBS = st.tuples(
    st.sampled_from([1, 2, 3, 4, 14]),
    st.sampled_from([None, None, 0.15, 0.4]),
    st.sampled_from([None, None, 0.7, 1.2]),
)


def both(chain, knobs):
    """The rule and what remains to be given to its twin."""
    group, near, apart = knobs
    codes = CODES[: chain[0]]
    rule = GroupedRule(codes if apart else None, group, near, apart)
    twin = (group, near or math.inf, codes.tolist(), apart or math.inf)
    return rule, twin


@settings(max_examples=200, deadline=None, derandomize=True)
@given(chains(), KNOBS, st.integers(0, 1))
def test_law_equals_naive(chain, knobs, filling):
    vocab, drafted, p, q = chain
    rule, twin = both(chain, knobs)
    law = categorical(q + [[0.0] * vocab] * filling, vocab)
    truth = grouped_naive.grouped_rule(drafted, p, q, *twin)
    assert close(rule_law(drafted, p, law, rule, filling), truth)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(chains(), KNOBS)
def test_one_hot_law_equals_naive(chain, knobs):
    vocab, drafted, p, _ = chain
    rule, twin = both(chain, knobs)
    truth = grouped_naive.grouped_rule(drafted, p, [one_hot(x, vocab) for x in drafted], *twin)
    assert close(rule_law(drafted, p, OneHot(), rule), truth)


@pytest.mark.parametrize("one_hot_law", [False, True])
@pytest.mark.parametrize("group", [2, 3, 4, 14])
def test_law_equals_naive_where_much_is_tied(group, one_hot_law):
    relaxed = 0
    for seed in range(40):
        vocab, drafted, p, q = chain = tied_chain(seed)
        if one_hot_law:
            q = [one_hot(x, vocab) for x in drafted]
        knobs = (group, (None, 0.15, 0.4)[seed % 3], (None, 0.7, 1.2, None)[seed % 4])
        rule, twin = both(chain, knobs)
        law = rule_law(drafted, p, OneHot() if one_hot_law else categorical(q, vocab), rule)
        assert close(law, grouped_naive.grouped_rule(drafted, p, q, *twin))
        relaxed += not close(law, token_naive.token_rule(drafted, p, q))
    assert relaxed >= 10


def test_naive_by_hand():
    """p = (.4, .3, .2, .1), q = (.1, .2, .3, .4); [p − q]+ = (.3, .1, 0, 0)."""
    p, q = [[0.4, 0.3, 0.2, 0.1], [1.0, 0.0, 0.0, 0.0]], [[0.1, 0.2, 0.3, 0.4]]
    for drafted, group, f in (
        (3, 1, 0.1 / 0.4),
        (3, 2, 0.1 / 0.4),  # an even group reaches further down, and there is nothing
        (3, 3, 0.3 / 0.7),
        (2, 2, 0.3 / 0.7),
        (2, 3, 0.6 / 0.9),
        (3, 7, 1.0 / 1.0),
        (0, 3, 1.0),  # Σ p = 0.7 above Σ q = 0.3
    ):
        law = grouped_naive.grouped_rule([drafted], p, q, group)
        assert close(law, {(drafted, 0): f, (0,): (1 - f) * 0.75, (1,): (1 - f) * 0.25})
    # |p(2) − p(3)| = 0.1 is not below 0.1; neither is a distance of 1 below 1
    codes = [[0.0], [1.0], [2.0], [3.0]]
    for law in (
        grouped_naive.grouped_rule([3], p, q, 7, 0.1 - 1e-12),
        grouped_naive.grouped_rule([3], p, q, 7, math.inf, codes, 1.0),
    ):
        assert law[(3, 0)] == pytest.approx(0.25, abs=1e-12)


def test_a_pooled_token_of_probability_zero_would_count():
    """Token 2 ranks next to 1, but can't come out: the draft's liking for it must not matter."""
    p, q = [[0.8, 0.2, 0.0], [1.0, 0.0, 0.0]], [[0.1, 0.4, 0.5]]
    law = rule_law([1], p, categorical(q, 3), GroupedRule(None, 2, None))
    assert law[(1, 0)] == pytest.approx(0.5, abs=1e-12)


def test_ranking_of_single_precision():
    """Its own path: the same order as a stable sort, with many ties and zeros among them."""
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        tied = torch.randint(0, 20, (3, 4, 200), generator=generator).float() / 7
        spread = (torch.randn(3, 4, 200, generator=generator) * 20).softmax(-1)
        for p in (tied, spread, tied[:, 1:3], tied.transpose(0, 1)):
            assert torch.equal(ranking(p), ranking(p.double()))
    p = torch.tensor([0.25, 0.5, 0.25, 0.0, 0.0])
    assert ranking(p).tolist() == [1, 0, 2, 3, 4]


def test_rows_do_not_depend_on_their_neighbours():
    """Ragged rows in one batch are judged as each would be alone."""
    generator = torch.Generator().manual_seed(0)
    rows, nodes, vocab = 6, 4, 50
    p = torch.randn(rows, nodes + 1, vocab, generator=generator).softmax(-1)
    q = torch.randn(rows, nodes, vocab, generator=generator).softmax(-1)
    tokens = torch.randint(0, vocab, (rows, nodes), generator=generator)
    lengths = torch.tensor([0, 1, 2, 3, 4, 4])
    rule, seeds, seen = GroupedRule(group_size=5), list(range(rows)), set()
    for number in range(20):
        coins = ProductionCoins(seeds).round(number)[1]
        together = rule.verify(Draft(tokens, lengths, Categorical(q)), Scores(p), coins)
        for b in range(rows):
            draft = Draft(tokens[[b]], lengths[[b]], Categorical(q[[b]]))
            alone = rule.verify(draft, Scores(p[[b]]), ProductionCoins([seeds[b]]).round(number)[1])
            count = int(alone.counts)
            assert int(together.counts[b]) == count
            assert torch.equal(together.emitted[b, :count], alone.emitted[0, :count])
            seen.add(count)
    assert len(seen) > 3


# --- groups of one are exact ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["null", "model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"],
)
def test_joint_law_of_the_whole_loop(name):
    for vocab, limit in ((2, 4), (3, 3)):
        target = Table(vocab, 7)
        drafter = drafters(vocab, Table(vocab, 8))[name]
        law = whole_loop(limit, TableTarget(target), drafter, GroupedRule(group_size=1))
        assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("warp", [Warp(), Warp(0.6), Warp(top_k=2), Warp(1.5, 3, 0.8)], ids=str)
def test_joint_law_with_a_draft_model(warp):
    target, model = Table(3, 0, warp), Table(3, 1, warp)
    rule, drafter = GroupedRule(group_size=1), ModelDrafter(TableModel(model))
    assert distance(composed(4, TableTarget(target), drafter, rule, 2), target.joint(4)) < EXACT


# --- larger ones are not, but keep to what they promise -------------------------------------------


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "coupled", "lookup"])
def test_lossy_loop_emits_only_what_the_target_can(name):
    limit, target = 4 if name == "lookup" else 3, Table(3, 7)  # a repeat takes four to matter
    drafter = drafters(3, Table(3, 8))[name]
    law = whole_loop(limit, TableTarget(target), drafter, GroupedRule(None, 3, None))
    truth = target.joint(limit)
    assert sum(law.values()) == pytest.approx(1, abs=EXACT)
    assert distance(law, truth) > SEEN
    assert all(truth.get(out, 0) > 0 for out in law)
    assert len(truth) < 3**limit  # there was something that it can't


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains().filter(lambda chain: chain[1]), KNOBS)
def test_a_token_of_probability_zero_never_stands(chain, knobs):
    vocab, drafted, p, q = chain
    rule = both(chain, knobs)[0]
    p = [[w * (y != drafted[0]) for y, w in enumerate(p[0])], *p[1:]]
    p[0] = [w / sum(p[0]) for w in p[0]] if any(p[0]) else one_hot((drafted[0] + 1) % vocab, vocab)
    for law in (categorical(q, vocab), OneHot()):
        assert {out[0] for out in rule_law(drafted, p, law, rule)} <= {
            y for y in range(vocab) if p[0][y] > 0
        }


@pytest.mark.parametrize("bound", [None, 0.15])
@pytest.mark.parametrize("law", [OneHot(), categorical([[0.2, 0.3, 0.1, 0.4]], 4)], ids=str)
def test_forced_tokens_are_not_relaxed(law, bound):
    """p on one token: that one stands surely, any other never."""
    rule, p = GroupedRule(CODES[:4], 14, bound, 2.0), [one_hot(2, 4), [0.25] * 4]
    for drafted in range(4):
        out = rule_law([drafted], p, law, rule)
        if drafted == 2:
            assert close(out, {(2, y): 0.25 for y in range(4)})
        else:
            assert close(out, {(2,): 1.0})


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "coupled"])
def test_greedy_stays_greedy(name):
    target = Table(3, 3, Warp(temperature=0))
    drafter = drafters(3, Table(3, 8))[name]
    law = whole_loop(4, TableTarget(target), drafter, GroupedRule(group_size=14))
    assert close(law, {target.greedy(4): 1.0})


def random_step(seed: int, vocab: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    q, p = torch.rand(2, vocab, generator=torch.Generator().manual_seed(seed)).double().pow(2)
    return q / q.sum(), p / p.sum()


@pytest.mark.parametrize("group", [1, 2, 3, 5])
def test_variation_is_at_most_how_often_the_coin_is_decided_otherwise(group):
    """And it is seen: an average well above 0 for every group but that of one."""
    rule, seen = GroupedRule(None, group, None), []
    for seed in range(20):
        q, p = random_step(seed)
        bound = 0.0
        for x in range(5):
            law = grouped_naive.grouped_rule([x], [p.tolist(), one_hot(0, 5)], [q.tolist()], group)
            stands = law.get((x, 0), 0.0)  # a second token comes out only behind one that stood
            bound += float(q[x]) * abs(stands - min(1.0, float(p[x] / q[x])))
        tv = variation(rule, Step(q, p))
        assert tv <= bound + 1e-12
        seen.append(tv)
    assert (sum(seen) / 20 > 0.02) == (group > 1)
    assert group > 1 or max(seen) < EXACT


def test_emitted_law_equals_naive():
    """Measured as in a report, from a draft that is drawn: the mean of the twin over what is."""
    rule = GroupedRule(CODES, 4, 0.4, 1.2)
    for seed in range(5):
        q, p = random_step(seed)
        truth: dict[int, float] = {}
        for x, weight in enumerate(q.tolist()):
            laws = [p.tolist(), one_hot(0, 5)], [q.tolist()]
            chain = ([x], *laws, 4, 0.4, CODES.tolist(), 1.2)
            for out, probability in grouped_naive.grouped_rule(*chain).items():
                truth[out[0]] = truth.get(out[0], 0.0) + weight * probability
        assert close(emitted_law(rule, q, p), truth)


# --- what can't be --------------------------------------------------------------------------------


def test_a_draft_whose_law_is_no_numbers_falls():
    p = [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]
    law = rule_law([1], p, categorical([[math.nan] * 3], 3), GroupedRule())
    assert close(law, {(0,): 0.25, (1,): 0.5, (2,): 0.25})


def test_tokens_without_a_code_are_pooled_with_none():
    codes = CODES.clone()
    codes[1] = math.nan
    rule = GroupedRule(codes[:3], 14, None, 10.0)
    p, q = [[0.5, 0.3, 0.2], [1.0, 0.0, 0.0]], [[0.1, 0.4, 0.5]]
    for drafted, f in ((1, 0.3 / 0.4), (2, 1.0), (0, 1.0)):  # of 2 and 0: Σ p = 0.7, Σ q = 0.6
        law = rule_law([drafted], p, categorical(q, 3), rule)
        assert law[(drafted, 0)] == pytest.approx(f, abs=1e-12)


@pytest.mark.parametrize(
    "law",
    [Opaque(), WithoutReplacement(torch.ones(1, 1, 2)), Gaussian(torch.ones(1), torch.ones(1))],
)
def test_other_laws_are_refused(law):
    with pytest.raises(ContractError, match=type(law).__name__):
        rule_law([0], [[0.5, 0.5]] * 2, law, GroupedRule())


def test_trees_are_refused():
    tree = Draft(torch.zeros(1, 2).long(), torch.tensor([2]), OneHot(), torch.full((1, 2), -1))
    scores, coins = Scores(torch.full((1, 3, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    with pytest.raises(ContractError, match="tree"):
        GroupedRule().verify(tree, scores, coins)


def test_a_distance_bound_needs_a_codebook():
    with pytest.raises(InputError, match="codebook"):
        GroupedRule(distance_bound=0.5)


def test_codebook_of_another_vocabulary():
    with pytest.raises(InputError, match="5 rows for 3 tokens"):
        rule_law([0], [[0.5, 0.25, 0.25]] * 2, OneHot(), GroupedRule(CODES, 3, None, 1.0))
