"""LANTERN and LANTERN++: equal to their twins, exact at the end of the knob, and how far beyond."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recursive import KINDS, LAWS, tree_law, trees
from toys import (
    EXACT,
    Table,
    TableModel,
    TableTarget,
    categorical,
    chains,
    close,
    composed,
    context_at,
    distance,
    one_hot,
    one_round,
    probs,
    rule_law,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept import recursive_naive
from mmspec.engine.accept.lantern import naive as lantern_naive
from mmspec.engine.accept.lantern.lantern import LanternPlusPlusRule, LanternRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque, WithoutReplacement
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.warp import Warp
from mmspec.errors import InputError
from mmspec.eval.measure.variation import emitted_law

# a rule, its twin, and knobs at which no sum of a random law lies on the bound itself
PAIRS = {
    "lantern": (LanternRule, lantern_naive.lantern_rule, [0.0613, 0.1737, 0.3911, 1.0]),
    "lantern++": (
        LanternPlusPlusRule,
        lantern_naive.lantern_plus_plus_rule,
        [1.0, 1.3717, 2.7193, 19.37],
    ),
}


@st.composite
def tables(draw, vocab: int) -> list[list[int]]:
    """Neighbours of the first C ids in any order; the others have none, as grid tokens."""
    codes = draw(st.integers(1, vocab))
    k = draw(st.integers(0, vocab - 1))
    return [draw(st.permutations([y for y in range(vocab) if y != x]))[:k] for x in range(codes)]


def table_tensor(table: list[list[int]]) -> torch.Tensor:
    return torch.tensor(table, dtype=torch.long).view(len(table), -1)


def everybody(vocab: int) -> torch.Tensor:
    """All other ids, by how far they are from one's own."""
    order = [sorted(range(vocab), key=lambda y, x=x: (abs(x - y), y))[1:] for x in range(vocab)]
    return torch.tensor(order)


# --- fast = naive ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LAWS)
@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 1))
def test_tree_equals_naive(name, kind, data, filling):
    make, twin, knobs = PAIRS[name]
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    table, knob = data.draw(tables(vocab)), data.draw(st.sampled_from(knobs))
    replacement = LAWS[kind] is not WithoutReplacement
    truth = twin(drafted, parents, p, q, table, knob, replacement)
    rule = make(table_tensor(table), knob)
    assert close(tree_law(vocab, drafted, parents, p, q, kind, filling, rule), truth)
    assert sum(truth.values()) == pytest.approx(1, abs=EXACT)


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=50, deadline=None, derandomize=True)
@given(st.data(), chains(), st.integers(0, 1))
def test_chain_equals_naive(name, chosen, data, chain, filling):
    """Some nodes of a categorical chain have a one-hot q, as new places of a Jacobi window."""
    make, twin, knobs = PAIRS[name]
    vocab, drafted, p, q = chain
    if chosen:
        q = [one_hot(x, vocab) for x in drafted]
    law = OneHot() if chosen else categorical(q + [[0.0] * vocab] * filling, vocab)
    table, knob = data.draw(tables(vocab)), data.draw(st.sampled_from(knobs))
    truth = twin(drafted, list(range(-1, len(drafted) - 1)), p, q, table, knob)
    assert close(rule_law(drafted, p, law, make(table_tensor(table), knob), filling), truth)


def test_lantern_by_hand():
    """p = (.4, .1, .2, .3), drafted 0 with neighbours 1, 2, 3 and δ = .3: 1 and 2 are pooled."""
    p, behind, near = [0.4, 0.1, 0.2, 0.3], [1.0, 0.0, 0.0, 0.0], [[1, 2, 3]]
    delta = 0.31  # .1 + .2 are more than .3 in binary
    law = lantern_naive.lantern_rule([0], [-1], [p, behind], [one_hot(0, 4)], near, delta)
    assert close(law, {(0, 0): 0.7, (3,): 0.3})
    # drawn with q = (.8, .2, 0, 0): stands with .7 / .8; else [p − q]+ = (0, 0, .2, .3)
    law = lantern_naive.lantern_rule([0], [-1], [p, behind], [[0.8, 0.2, 0, 0]], near, delta)
    assert close(law, {(0, 0): 0.875, (2,): 0.05, (3,): 0.075})


def test_lantern_plus_plus_by_hand():
    """λ = 1.5: at most .2 may be pooled beside p(0) = .4, which is id 1 alone."""
    p, behind, near = [0.4, 0.1, 0.2, 0.3], [1.0, 0.0, 0.0, 0.0], [[1, 2, 3]]
    law = lantern_naive.lantern_plus_plus_rule([0], [-1], [p, behind], [one_hot(0, 4)], near, 1.5)
    assert close(law, {(0, 0): 0.5, (1,): 0.5 / 6, (2,): 1 / 6, (3,): 0.25})


# --- at the end of the knob: exact ----------------------------------------------------------------

EXACT_RULES = {
    "delta 0": LanternRule(everybody(3), 0.0),
    "no neighbours": LanternRule(everybody(3)[:, :0], 0.7),
    "lambda 1": LanternPlusPlusRule(everybody(3), 1.0),
    "no neighbours++": LanternPlusPlusRule(everybody(3)[:, :0], 9.0),
}
DRAFTERS = {
    "chain": lambda model: ModelDrafter(model),
    "jacobi": lambda model: JacobiDrafter(3, "uniform"),
    **{kind: lambda model, kind=kind: TreeDrafter(model, (2, 1), kind) for kind in KINDS},
}


@pytest.mark.parametrize("warp", [Warp(), Warp(top_k=2)], ids=str)
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("rule", EXACT_RULES)
def test_joint_law(rule, drafter, warp):
    target, model = Table(3, 0, warp), TableModel(Table(3, 1, warp))
    law = composed(3, TableTarget(target), DRAFTERS[drafter](model), EXACT_RULES[rule], 2)
    assert distance(law, target.joint(3)) < EXACT


@pytest.mark.parametrize("drafter", [JacobiDrafter, CoupledJacobiDrafter])
@pytest.mark.parametrize("rule", EXACT_RULES)
def test_joint_law_of_the_whole_loop(rule, drafter):
    target = Table(3, 7)
    law = whole_loop(3, TableTarget(target), lambda: drafter(3), EXACT_RULES[rule])
    assert distance(law, target.joint(3)) < EXACT


@pytest.mark.parametrize("kind", LAWS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data())
def test_verdict_is_that_of_recursive_rejection(kind, data):
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    truth = recursive_naive.recursive_rule(
        drafted, parents, p, q, LAWS[kind] is not WithoutReplacement
    )
    for rule in (LanternRule(everybody(vocab), 0.0), LanternPlusPlusRule(everybody(vocab), 1.0)):
        assert close(tree_law(vocab, drafted, parents, p, q, kind, rule=rule), truth)


# --- what is never relaxed ------------------------------------------------------------------------


def loosest(vocab: int) -> list:
    return [LanternRule(everybody(vocab), 1.0), LanternPlusPlusRule(everybody(vocab), 1e6)]


def is_possible(out, drafted, parents, p) -> bool:
    """Every token of `out` has a probability above 0 behind a node that holds the one before."""
    nodes = {-1}
    for token in out:
        if not any(p[n + 1][token] > 0 for n in nodes):
            return False
        nodes = {m for m, x in enumerate(drafted) if parents[m] in nodes and x == token}
    return True


@pytest.mark.parametrize("kind", LAWS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_token_of_probability_zero_is_never_emitted(kind, data):
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    for rule in loosest(vocab):
        for out in tree_law(vocab, drafted, parents, p, q, kind, rule=rule):
            assert is_possible(out, drafted, parents, p)


@pytest.mark.parametrize("kind", LAWS)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 3))
def test_forced_tokens_are_forced(kind, data, forced):
    """A one-hot p: its token is accepted surely where it was drafted, and no other ever."""
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    forced %= vocab
    p[0] = one_hot(forced, vocab)
    tried = {drafted[n] for n, parent in enumerate(parents) if parent == -1}
    for rule in loosest(vocab):
        law = tree_law(vocab, drafted, parents, p, q, kind, rule=rule)
        assert {out[0] for out in law} == {forced}
        kept = sum(probability for out, probability in law.items() if len(out) > 1)
        # another child may have taken the place of one that can't stand: none did
        assert kept == pytest.approx(float(forced in tried), abs=EXACT)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_stays_greedy(drafter):
    target = Table(3, 3, Warp(temperature=0))
    for rule in loosest(3):
        model = TableModel(Table(3, 4))
        law = composed(3, TableTarget(target), DRAFTERS[drafter](model), rule, 2)
        assert law == {target.greedy(3): pytest.approx(1, abs=EXACT)}


def test_zeroed_neighbours_do_not_empty_the_law():
    """All of p lies on the neighbours of a token that can't stand: nothing happens to p."""
    p = [0.0, 0.25, 0.75]
    for rule in loosest(3):
        law = rule_law([0], [p, p], OneHot(), rule)
        assert close(law, {(1,): 0.25, (2,): 0.75})


def test_ids_beyond_the_table_have_no_neighbours():
    p, behind = [0.5, 0.25, 0.25], [1.0, 0.0, 0.0]
    rule = LanternRule(torch.tensor([[1], [0]]), 1.0)
    assert close(rule_law([2], [p, behind], OneHot(), rule), {(2, 0): 0.25, (0,): 0.5, (1,): 0.25})
    assert close(rule_law([1], [p, behind], OneHot(), rule), {(1, 0): 0.75, (2,): 0.25})


# --- how far the law is from the target's ---------------------------------------------------------


def first_tokens(law: dict) -> dict[int, float]:
    out: dict[int, float] = {}
    for tokens, probability in law.items():
        out[tokens[0]] = out.get(tokens[0], 0.0) + probability
    return out


def pooled(p: list[float], x: int, near: list[int], bound: float) -> list[int]:
    """The neighbours that x is credited with, by trying every prefix."""
    fits = [m for m in range(len(near) + 1) if sum(p[n] for n in near[:m]) <= bound]
    return near[: max(fits)] if p[x] > 0 else []


def tv(law: dict[int, float], p: list[float]) -> float:
    return distance(law, dict(enumerate(p)))


def measured(rule, p: list[float], q: list[float]) -> dict[int, float]:
    """As the evaluation measures it: one node, drawn from q or, if that is one-hot, chosen."""
    return emitted_law(rule, *torch.tensor([q, p], dtype=torch.float64))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 4), st.sampled_from([0.0613, 0.1737, 0.3911, 1.0]))
def test_one_chosen_token_gains_what_its_pool_loses(data, x, delta):
    """TV is the pooled mass itself, δ at most, and all of it comes from the pool."""
    p, near = data.draw(probs(5)), everybody(5)
    law = measured(LanternRule(near, delta), p, one_hot(x, 5))
    pool = pooled(p, x, near[x].tolist(), delta)
    mass = sum(p[n] for n in pool)
    assert mass <= delta
    assert tv(law, p) == pytest.approx(mass, abs=EXACT)
    wanted = [p[x] + mass if y == x else 0.0 if y in pool else p[y] for y in range(5)]
    assert tv(law, wanted) < EXACT


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data(), st.integers(1, 4), st.sampled_from([0.0613, 0.1737, 0.3911]))
def test_chosen_siblings_are_bounded_by_their_number(data, count, delta):
    p, drafted = data.draw(probs(5)), data.draw(st.permutations(range(5)))[:count]
    q = [one_hot(x, 5) for x in drafted]
    rule = LanternRule(everybody(5), delta)
    law = tree_law(5, drafted, [-1] * count, [p] * (count + 1), q, "top", rule=rule)
    assert tv(first_tokens(law), p) <= 1 - (1 - delta) ** count + EXACT


@pytest.mark.parametrize("name", PAIRS)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_one_drawn_token_gains_its_pool_where_it_is_overdrawn(name, data):
    """TV = Σ min([q − p]+, pooled mass), which is TV(p, q) at most."""
    make, _, knobs = PAIRS[name]
    p, q, knob = data.draw(probs(5)), data.draw(probs(5)), data.draw(st.sampled_from(knobs))
    near = everybody(5)
    law = measured(make(near, knob), p, q)
    bounds = [knob if name == "lantern" else (knob - 1) * p[x] for x in range(5)]
    pools = [pooled(p, x, near[x].tolist(), bounds[x]) for x in range(5)]
    gains = [min(max(0.0, q[x] - p[x]), sum(p[n] for n in pools[x])) for x in range(5)]
    assert tv(law, p) == pytest.approx(sum(gains), abs=EXACT)
    assert tv(law, p) <= distance(dict(enumerate(p)), dict(enumerate(q))) + EXACT


def test_delta_does_not_bound_a_drawn_token():
    """Two tokens gain 0.2 each from two others: TV is twice δ."""
    p, q = [0.3, 0.2, 0.3, 0.2], [0.5, 0.0, 0.5, 0.0]
    rule = LanternRule(torch.tensor([[1], [0], [3], [2]]), 0.2)
    assert tv(measured(rule, p, q), p) == pytest.approx(0.4, abs=EXACT)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("widths", [(1,), (2,), (3,)], ids=str)
@pytest.mark.parametrize("kind", ["independent", "without-replacement"])
@pytest.mark.parametrize("name", PAIRS)
def test_drawn_siblings_are_no_farther_than_the_draft_itself(name, kind, widths, seed):
    target, model = Table(4, seed), Table(4, seed + 50)
    make, _, knobs = PAIRS[name]
    p, q = target(()), model(())
    for knob in knobs:
        drafter = TreeDrafter(TableModel(model), widths, kind)
        rule = make(everybody(4), knob)
        law = first_tokens(one_round((), 2, TableTarget(target), drafter, rule, 1))
        assert tv(law, p) <= distance(dict(enumerate(p)), dict(enumerate(q))) + EXACT


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lam", [1.3717, 2.7193, 19.37])
@pytest.mark.parametrize("seed", range(4))
def test_no_token_is_more_than_lambda_times_as_likely(seed, lam, kind):
    """Any siblings; and so TV is 1 − 1/λ at most."""
    target, model = Table(4, seed), Table(4, seed + 50)
    p = target(())
    drafter = TreeDrafter(TableModel(model), (3,), kind)
    rule = LanternPlusPlusRule(everybody(4), lam)
    law = first_tokens(one_round((), 2, TableTarget(target), drafter, rule, 1))
    assert all(law.get(x, 0.0) <= lam * p[x] + EXACT for x in range(4))
    assert tv(law, p) <= 1 - 1 / lam + EXACT


def test_lambda_bound_is_reached():
    """p(0) = 1/λ and everything else is its neighbour: chosen, it is emitted surely."""
    rule = LanternPlusPlusRule(everybody(2), 4.0)
    assert tv(measured(rule, [0.25, 0.75], [1.0, 0.0]), [0.25, 0.75]) == pytest.approx(0.75)


# --- rows, laws and knobs -------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("kind", ["top", "independent", "without-replacement", "chain"])
def test_rows_are_judged_alone(name, kind):
    """Ragged rows in one batch, and each by itself, whatever lies in its filling."""
    generator = torch.Generator().manual_seed(5)
    vocab, nodes, rows = 16, 6, 32
    make, _, knobs = PAIRS[name]
    rule = make(everybody(vocab), knobs[2])
    p = torch.rand(rows, nodes + 1, vocab, generator=generator).pow(4)
    q = torch.rand(rows, nodes, vocab, generator=generator)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    tokens = torch.randint(vocab, (rows, nodes), generator=generator)
    parents = torch.tensor([-1, -1, 0, 0, 1, 2]).expand(rows, -1)
    lengths = torch.arange(rows) % (nodes + 1)

    def verdict(one: slice, width: int):
        law = Categorical(q[one, :width])
        if kind in ("top", "without-replacement"):
            law = OneHot() if kind == "top" else WithoutReplacement(q[one, :width])
        behind = None if kind == "chain" else parents[one, :width]
        draft = Draft(tokens[one, :width], lengths[one], law, behind)
        seeds = list(range(rows))[one]
        coins = ProductionCoins(seeds).round(0)[1]
        return rule.verify(draft, Scores(p[one, : width + 1]), coins)

    together = verdict(slice(None), nodes)
    assert len(set(together.counts.tolist())) > 1
    for row in range(rows):
        alone = verdict(slice(row, row + 1), int(lengths[row]))
        count = int(together.counts[row])
        assert alone.counts.tolist() == [count]
        assert torch.equal(alone.emitted[0, :count], together.emitted[row, :count])


def test_laws_in_float32_are_pooled_in_double():
    """A thousand neighbours of mass 1e-4 each: their sum is on the right side of δ."""
    p = torch.full((1, 2, 1001), 1e-4)
    p[..., 0] = 0.9
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), OneHot())
    shown = []

    class Coins:
        def accept(self, prob, lengths):
            shown.append(prob)
            return prob > 2

        def draw(self, weights):
            return weights.argmax(-1)

    LanternRule(torch.arange(1, 1001)[None], 0.05).verify(draft, Scores(p), Coins())
    single = float(torch.tensor(1e-4))  # 1e-4 in float32 is a little less
    assert shown[0].item() == pytest.approx(float(p[0, 0, 0]) + 500 * single, abs=1e-12)


@pytest.mark.parametrize("rule", loosest(2))
def test_opaque_is_refused(rule):
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), Opaque())
    with pytest.raises(ContractError, match="Opaque"):
        rule.verify(draft, Scores(torch.full((1, 2, 2), 0.5)), ProductionCoins([0]).round(0)[1])


@pytest.mark.parametrize(
    "table", [torch.zeros(3, 2), torch.zeros(3).long(), torch.zeros(0, 2).long()]
)
def test_neighbours_are_a_table(table):
    for make in (LanternRule, LanternPlusPlusRule):
        with pytest.raises(InputError, match="nearest_codes"):
            make(table, 1.0)


def test_both_say_that_they_are_lossy():
    assert LanternRule.contract == LanternPlusPlusRule.contract == "lossy"


@pytest.mark.parametrize("name", PAIRS)
def test_relaxed_jacobi_accepts_more(name):
    """The knob does what it is for: through the loop, drafts stand longer."""
    target = Table(3, 7)
    make, _, knobs = PAIRS[name]

    def kept(knob) -> float:
        def shipped(coins, rows):
            drafter, context = JacobiDrafter(3, "uniform"), context_at((), rows, 3)
            drafter.start(context)
            proposal, verification = coins.round(0)
            draft = drafter.propose(context, [2] * rows, proposal)
            scores = TableTarget(target).score(context, draft)
            verdict = make(everybody(3), knob).verify(draft, scores, verification)
            return verdict.accepted.tolist()

        return sum(n * chance for n, chance in enumerate_law(shipped).items())

    assert kept(knobs[0]) < kept(knobs[-1]) - 0.05
