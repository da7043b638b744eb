"""Cool-SD: equal to its twin, bent by no more than its bounds, and exact where ω is at most 1."""

from __future__ import annotations

import math

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
from mmspec.engine.accept import cool_naive, token_naive
from mmspec.engine.accept.chain import accepted_prefix, chain_laws, recovered_verdict, token_probs
from mmspec.engine.accept.cool import CoolRule
from mmspec.engine.accept.token import TokenRule
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
from mmspec.eval.measure.variation import Step, emitted_law, variation

SEEN = 1e-3

KNOBS = st.tuples(
    st.sampled_from([0.0, 0.3, 1.0, 1.1, 2.0]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([0.0, 0.7, 2.0]),
    st.sampled_from([0.0, 0.6, 1.0]),
)


# --- fast = naive ---------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None, derandomize=True)
@given(chains(), KNOBS, st.integers(0, 1))
def test_law_equals_naive(chain, knobs, filling):
    vocab, drafted, p, q = chain
    law = categorical(q + [[0.0] * vocab] * filling, vocab)
    truth = cool_naive.cool_rule(drafted, p, q, *knobs)
    assert close(rule_law(drafted, p, law, CoolRule(*knobs), filling), truth)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(chains(), KNOBS)
def test_one_hot_law_equals_naive(chain, knobs):
    vocab, drafted, p, _ = chain
    truth = cool_naive.cool_rule(drafted, p, [one_hot(x, vocab) for x in drafted], *knobs)
    assert close(rule_law(drafted, p, OneHot(), CoolRule(*knobs)), truth)


def test_naive_by_hand():
    """p = (.25, .75), q = (.75, .25), drafted 0: it stands with ω / 3."""
    p, q = [[0.25, 0.75], [0.5, 0.5]], [[0.75, 0.25]]
    law = cool_naive.cool_rule([0], p, q, 1.5, 1, 0.7, 1.0)  # length 1: ω_1 = δ; residual (0, .5)
    assert close(law, {(0, 0): 1 / 4, (0, 1): 1 / 4, (1,): 1 / 2})
    # ω = 1/2: stands with 1/6; q f = (1/8, 1/4), and what is left of p is (1/8, 1/2)
    law = cool_naive.cool_rule([0], p, q, 0.5, 1, 0.7, 0.0)
    assert close(law, {(0, 0): 1 / 12, (0, 1): 1 / 12, (0,): 1 / 6, (1,): 4 / 6})


def test_schedule():
    rule = CoolRule(1.1, 5, floor=0)
    omega = rule.omega(8)
    assert float(omega[:5].mean()) == pytest.approx(1.1, abs=1e-12)
    assert torch.allclose(omega[1:] / omega[:-1], torch.tensor(math.exp(-0.7)).double())
    assert float(omega[0]) == pytest.approx(1.1 * math.exp(-0.7 - rule.mu), abs=1e-12)
    assert rule.bound == pytest.approx(1 - 1 / float(omega[0]), abs=1e-12)
    floored = CoolRule(1.1, 5).omega(8)
    assert torch.equal(floored, omega.clamp_min(1))
    assert 1 < int((floored > 1).sum()) < 5
    assert CoolRule(1.3, 4, nu=0).omega(4).tolist() == pytest.approx([1.3] * 4, abs=1e-12)
    steep = CoolRule(0.5, 3, nu=2000).omega(3)  # nothing but the first node
    assert steep.tolist() == pytest.approx([1.5, 1.0, 1.0])


def test_rows_do_not_depend_on_their_neighbours():
    generator = torch.Generator().manual_seed(0)
    rows, nodes, vocab = 6, 4, 50
    p = torch.randn(rows, nodes + 1, vocab, generator=generator).softmax(-1)
    q = torch.randn(rows, nodes, vocab, generator=generator).softmax(-1)
    tokens = torch.randint(0, vocab, (rows, nodes), generator=generator)
    lengths = torch.tensor([0, 1, 2, 3, 4, 4])
    rule, seeds, seen = CoolRule(1.2, 4, floor=0), list(range(rows)), set()
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


# --- exact where ω is at most 1 -------------------------------------------------------------------

EXACTLY = {  # below 1 throughout; never accepting; at 1
    "below": CoolRule(0.4, 2, floor=0),
    "never": CoolRule(0.0, 2, floor=0),
    "floored": CoolRule(0.4, 2),
}


@pytest.mark.parametrize("knob", EXACTLY)
@pytest.mark.parametrize(
    "name",
    ["null", "model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"],
)
def test_joint_law_of_the_whole_loop(name, knob):
    assert EXACTLY[knob].bound == 0
    for vocab, limit in ((2, 4), (3, 3)) if knob == "below" else ((2, 4),):
        target = Table(vocab, 7)
        drafter = drafters(vocab, Table(vocab, 8))[name]
        law = whole_loop(limit, TableTarget(target), drafter, EXACTLY[knob])
        assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("knob", EXACTLY)
@pytest.mark.parametrize("warp", [Warp(), Warp(0.6), Warp(top_k=2), Warp(1.5, 3, 0.8)], ids=str)
def test_joint_law_with_a_draft_model(warp, knob):
    target, model = Table(3, 0, warp), Table(3, 1, warp)
    drafter = ModelDrafter(TableModel(model))
    law = composed(4, TableTarget(target), drafter, EXACTLY[knob], 2)
    assert distance(law, target.joint(4)) < EXACT


@settings(max_examples=40, deadline=None, derandomize=True)
@given(chains())
def test_floored_schedule_at_one_is_the_token_rule(chain):
    vocab, drafted, p, q = chain
    law = categorical(q, vocab)
    assert close(
        rule_law(drafted, p, law, EXACTLY["floored"]), token_naive.token_rule(drafted, p, q)
    )


class TokenResidual(CoolRule):
    """[p − q]+ in place of [p − q f]+: what is left of p where less than it is accepted is lost."""

    def verify(self, draft, scores, coins):
        if not draft.nodes:
            return TokenRule().verify(draft, scores, coins)
        q = chain_laws(draft, "hazard")
        prob = token_probs(scores.at_nodes(draft), draft.tokens) / token_probs(q, draft.tokens)
        ok = coins.accept(self.omega(draft.nodes) * prob, draft.lengths)
        return recovered_verdict(draft, scores.probs, q, accepted_prefix(ok, draft), coins)


def test_hazard_residual_of_the_token_rule():
    target, model = Table(3, 0), Table(3, 1)
    drafter = ModelDrafter(TableModel(model))
    law = composed(4, TableTarget(target), drafter, TokenResidual(0.4, 2, floor=0), 2)
    assert distance(law, target.joint(4)) > SEEN


# --- bent by no more than its bounds --------------------------------------------------------------


def random_step(seed: int, vocab: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    q, p = torch.rand(2, vocab, generator=torch.Generator().manual_seed(seed)).double().pow(2)
    q[1], p[2] = 0, 0
    return q / q.sum(), p / p.sum()


@pytest.mark.parametrize("omega", [0.0, 0.5, 1.0, 1.1, 1.5, 3.0])
def test_variation_of_a_step(omega):
    """Σ [min(q, ω p) − p]+, the least that this acceptance allows; what it gains; 1 − 1 / ω."""
    rule, seen = CoolRule(omega, 1, floor=0), 0.0
    for seed in range(10):
        q, p = random_step(seed)
        tv = variation(rule, Step(q, p))
        accepted = torch.minimum(q, omega * p)
        assert tv == pytest.approx(float((accepted - p).clamp_min(0).sum()), abs=EXACT)
        gain = float(accepted.sum() - torch.minimum(q, p).sum())
        assert tv == pytest.approx(max(0.0, gain), abs=EXACT)
        assert tv <= rule.bound + EXACT
        law = emitted_law(rule, q, p)
        assert all(w <= max(1.0, omega) * float(p[x]) + EXACT for x, w in law.items())
        seen += tv / 10
    assert (seen > SEEN) == (omega > 1)
    assert rule.bound == pytest.approx(1 - 1 / omega if omega > 1 else 0.0, abs=1e-12)


@pytest.mark.parametrize("omega", [1.25, 2.0])
def test_the_bound_is_reached(omega):
    """A chosen token of probability 1 / ω always stands."""
    q, p = torch.tensor([1.0, 0.0]).double(), torch.tensor([1 / omega, 1 - 1 / omega]).double()
    assert variation(CoolRule(omega, 1), Step(q, p)) == pytest.approx(1 - 1 / omega, abs=EXACT)


@pytest.mark.parametrize("floor", [0.0, 1.0])
@pytest.mark.parametrize(
    "name", ["model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"]
)
def test_bounds_of_whole_outputs(name, floor):
    """n tokens: at most ω_1^n times the target's probability, and 1 − ω_1^(−n) of variation."""
    rule = CoolRule(0.9, 2, floor=floor)
    most = float(rule.omega(1))
    assert 1 < most < 1.25
    for vocab, limit in ((2, 4), (3, 3)):
        target = Table(vocab, 5)
        drafter = drafters(vocab, Table(vocab, 8))[name]
        law, truth = whole_loop(limit, TableTarget(target), drafter, rule), target.joint(limit)
        assert sum(law.values()) == pytest.approx(1, abs=EXACT)
        assert all(w <= most**limit * truth.get(out, 0) + EXACT for out, w in law.items())
        assert distance(law, truth) <= 1 - most**-limit
        assert distance(law, truth) > SEEN or (name, limit) == ("lookup", 3)  # nothing repeats yet


def test_later_nodes_are_judged_by_their_own_omega():
    """The second node alone is exact where ω_2 ≤ 1 < ω_1."""
    rule = CoolRule(1.0, 2, floor=0)
    assert float(rule.omega(2)[0]) > 1 > float(rule.omega(2)[1])
    q, p = random_step(3)
    second: dict[int, float] = {}
    sure = one_hot(0, 6)
    for x, weight in enumerate(q.tolist()):
        if weight:
            laws = categorical([sure, q.tolist()], 6)
            law = rule_law([0, x], [sure, p.tolist(), sure], laws, rule)
            for out, probability in law.items():
                if len(out) > 1:
                    second[out[1]] = second.get(out[1], 0.0) + weight * probability
    assert sum(second.values()) == pytest.approx(1, abs=EXACT)
    assert distance(second, dict(enumerate(p.tolist()))) < EXACT


# --- what it never does ---------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [0.0, 1.0])
@pytest.mark.parametrize("law", [OneHot(), categorical([[0.2, 0.3, 0.1, 0.4]], 4)], ids=str)
def test_forced_tokens_are_not_relaxed(law, floor):
    """p on one token: that one comes out surely, and with a floor of 1 stands surely."""
    rule, p = CoolRule(3.0 if floor else 0.05, 1, floor=floor), [one_hot(2, 4), [0.25] * 4]
    for drafted in range(4):
        out = rule_law([drafted], p, law, rule)
        assert sum(w for x, w in out.items() if x[0] == 2) == pytest.approx(1, abs=EXACT)
        if drafted != 2 or floor:
            assert {len(x) for x in out} == {2 if drafted == 2 else 1}


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains().filter(lambda chain: chain[1]), KNOBS)
def test_only_what_the_target_can_emit(chain, knobs):
    vocab, drafted, p, q = chain
    for law in (categorical(q, vocab), OneHot()):
        for out in rule_law(drafted, p, law, CoolRule(*knobs)):
            assert all(p[n][x] > 0 for n, x in enumerate(out))


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "coupled"])
def test_greedy_stays_greedy(name):
    target = Table(3, 3, Warp(temperature=0))
    drafter = drafters(3, Table(3, 8))[name]
    for rule in (CoolRule(3.0, 2), CoolRule(1.0, 2, floor=0)):
        law = whole_loop(4, TableTarget(target), drafter, rule)
        assert close(law, {target.greedy(4): 1.0})


def test_a_draft_whose_law_is_no_numbers_falls():
    p = [[0.25, 0.5, 0.25], [1.0, 0.0, 0.0]]
    for floor in (0.0, 1.0):
        rule = CoolRule(0.5, 1, floor=floor)
        law = rule_law([1], p, categorical([[math.nan] * 3], 3), rule)
        assert close(law, {(0,): 0.25, (1,): 0.5, (2,): 0.25})


@pytest.mark.parametrize(
    "law",
    [Opaque(), WithoutReplacement(torch.ones(1, 1, 2)), Gaussian(torch.ones(1), torch.ones(1))],
)
def test_other_laws_are_refused(law):
    with pytest.raises(ContractError, match=type(law).__name__):
        rule_law([0], [[0.5, 0.5]] * 2, law, CoolRule(1.1, 2))


def test_trees_are_refused():
    tree = Draft(torch.zeros(1, 2).long(), torch.tensor([2]), OneHot(), torch.full((1, 2), -1))
    scores, coins = Scores(torch.full((1, 3, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    with pytest.raises(ContractError, match="tree"):
        CoolRule(1.1, 2).verify(tree, scores, coins)
