"""The token rule is exact: the law of the shipped code, enumerated, is the target's law.

Hazards are put in one at a time, and the same comparison must see each of them.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from toys import (
    EXACT,
    FixedDrafter,
    GridCoins,
    Table,
    TableModel,
    TableTarget,
    categorical,
    chains,
    close,
    composed,
    context_at,
    distance,
    drafters,
    one_hot,
    outputs,
    rule_law,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.engine.accept import token_naive
from mmspec.engine.accept.chain import prefix_verdict
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ACCEPT, PROPOSE, ProductionCoins, _Verifications
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import (
    Categorical,
    ContractError,
    Gaussian,
    OneHot,
    Opaque,
    WithoutReplacement,
)
from mmspec.engine.length.constant import ConstantLength, HeuristicLength
from mmspec.engine.loop import advance, run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

SEEN = 1e-3

# --- fast = naive ---------------------------------------------------------------------------------


@settings(max_examples=120, deadline=None, derandomize=True)
@given(chains(), st.integers(0, 1))
def test_law_equals_naive(chain, filling):
    vocab, drafted, p, q = chain
    # filling nodes carry a q of zero: px / qx is not a number there and must not matter
    law = categorical(q + [[0.0] * vocab] * filling, vocab)
    assert close(
        rule_law(drafted, p, law, TokenRule(), filling), token_naive.token_rule(drafted, p, q)
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_one_hot_law_equals_naive(chain):
    vocab, drafted, p, _ = chain
    truth = token_naive.token_rule(drafted, p, [one_hot(x, vocab) for x in drafted])
    assert close(rule_law(drafted, p, OneHot(), TokenRule()), truth)


def test_naive_by_hand():
    """Algorithm 1 with V = 2: p = (.25, .75), q = (.75, .25), drafted 0: kept with 1/3, else 1."""
    law = token_naive.token_rule([0], [[0.25, 0.75], [0.5, 0.5]], [[0.75, 0.25]])
    truth = {(0, 0): 1 / 6, (0, 1): 1 / 6, (1,): 2 / 3}
    assert close(law, truth)


def test_nothing_left_over_after_a_rejection():
    """p = q up to rounding: a rejection has no residual to draw from, so p itself is drawn."""
    p = [0.25 * (1 - 1e-12), 0.75 * (1 - 1e-12)]
    law = rule_law([1], [p, [0.5, 0.5]], categorical([[0.25, 0.75]], 2), TokenRule())
    assert close(law, {(1, 0): 0.5, (1, 1): 0.5})
    assert law[(0,)] == pytest.approx(1e-12 * 0.25, rel=1e-3)


@pytest.mark.parametrize(
    "law",
    [Opaque(), WithoutReplacement(torch.ones(1, 1, 2)), Gaussian(torch.ones(1), torch.ones(1))],
)
def test_other_laws_are_refused(law):
    with pytest.raises(ContractError, match=type(law).__name__):
        rule_law([0], [[0.5, 0.5]] * 2, law, TokenRule())


def test_trees_are_refused():
    tree = Draft(torch.zeros(1, 2).long(), torch.tensor([2]), OneHot(), torch.full((1, 2), -1))
    scores, coins = Scores(torch.full((1, 3, 2), 0.5)), ProductionCoins([0]).round(0)[1]
    with pytest.raises(ContractError, match="tree"):
        TokenRule().verify(tree, scores, coins)


# --- one-round kernels, composed to the joint law -------------------------------------------------

WARPERS = [
    Warp(),
    Warp(temperature=0),
    Warp(temperature=0.6),
    Warp(top_k=2),
    Warp(top_p=0.7),
    Warp(temperature=1.5, top_k=3, top_p=0.8),
]


def model_law(target: Table, model: Table, gamma=2, limit=4, eos=None, rule=None, **parts) -> dict:
    drafter = parts.pop("drafter", ModelDrafter)(TableModel(model))
    rule = rule or TokenRule()
    return composed(limit, TableTarget(target), drafter, rule, gamma, eos, **parts)


@pytest.mark.parametrize("both", [True, False], ids=["both-warped", "target-warped"])
@pytest.mark.parametrize("warp", WARPERS, ids=str)
def test_joint_law_with_a_draft_model(warp, both):
    target, model = Table(3, 0, warp), Table(3, 1, warp if both else Warp())
    assert distance(model_law(target, model), target.joint(4)) < EXACT


@pytest.mark.parametrize("gamma", [1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_joint_law_over_draft_lengths(gamma, seed):
    target, model = Table(3, 10 + seed), Table(3, 20 + seed)
    assert distance(model_law(target, model, gamma), target.joint(4)) < EXACT


def test_joint_law_without_overlap():
    """Nothing is ever accepted, and every token is the target's."""
    target, model = Table(4, 0, support=[0, 2]), Table(4, 1, support=[1, 3])
    assert distance(model_law(target, model, limit=3), target.joint(3)) < EXACT


def test_joint_law_when_the_drafter_is_the_target():
    target = Table(3, 0)
    assert distance(model_law(target, Table(3, 0)), target.joint(4)) < EXACT


def test_joint_law_with_end_of_sequence():
    target, model = Table(3, 4), Table(3, 5)
    truth = target.joint(4, eos=1)
    assert len({len(out) for out in truth}) == 4  # outputs of every length
    assert distance(model_law(target, model, eos=1), truth) < EXACT


@pytest.mark.parametrize("init", ["uniform", "previous"])
def test_jacobi_joint_law_from_rounds(init):
    """The drafter's state, the window's laws, is part of the kernel: (prefix, last draft, kept)."""
    vocab, window, limit = 3, 2, 4
    target = Table(vocab, 6)
    law: dict = {}
    frontier = {((), None): 1.0}
    while frontier:
        longer: dict = {}
        for (prefix, before), probability in frontier.items():
            step = jacobi_round(target, prefix, before, window, limit, init)
            for (out, state), p in step.items():
                into, key = (law, out) if len(out) == limit else (longer, (out, state))
                into[key] = into.get(key, 0.0) + probability * p
        frontier = longer
    assert distance(law, target.joint(limit)) < EXACT


def jacobi_round(table, prefix, before, window, limit, init) -> dict:
    """The law of (output, state) after one round; a state is what the drafter last observed."""
    target, drafter = TableTarget(table), JacobiDrafter(table.vocab, init)

    def shipped(coins, rows):
        context = context_at(prefix, rows, limit)
        drafter.start(context)
        if before is not None:
            base, nodes, kept = before
            draft = Draft(
                torch.tensor(nodes).long().expand(rows, -1),
                torch.full((rows,), len(nodes)),
                OneHot(),  # a Jacobi window does not ask what it was drawn from
            )
            scores = target.score(context_at(prefix[:base], rows, limit), draft)
            accepted = torch.full((rows,), kept)
            verdict = prefix_verdict(draft, accepted, torch.full((rows,), prefix[-1]))
            drafter.observe(context, draft, scores, verdict)
        budget = [max(0, min(window, room - 1)) for room in context.room()]
        draft = drafter.propose(context, budget, coins.round(0)[0])
        scores = target.score(context, draft)
        verdict = TokenRule().verify(draft, scores, coins.round(0)[1])
        advance(context, draft, scores, verdict)
        states = [
            (len(prefix), tuple(nodes), kept)
            for nodes, kept in zip(draft.tokens.tolist(), verdict.accepted.tolist(), strict=True)
        ]
        return list(zip(outputs(context), states, strict=True))

    return enumerate_law(shipped)


# --- the whole loop, enumerated -------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    ["null", "model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"],
)
def test_joint_law_of_the_whole_loop(name):
    for vocab, limit in ((2, 4), (3, 3)):
        target = Table(vocab, 7)
        drafter = drafters(vocab, Table(vocab, 8))[name]
        law = whole_loop(limit, TableTarget(target), drafter)
        assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("name", ["model", "jacobi-uniform"])
def test_joint_law_when_the_draft_length_adapts(name):
    """The length depends on what was accepted before, which must not colour what comes."""
    target = Table(2, 7)
    drafter = drafters(2, Table(2, 8))[name]
    law = whole_loop(5, TableTarget(target), drafter, length=HeuristicLength(1, 3))
    assert distance(law, target.joint(5)) < EXACT


@pytest.mark.parametrize("name", ["model", "jacobi-previous"])
def test_joint_law_of_the_whole_loop_with_end_of_sequence(name):
    target = Table(2, 12)
    drafter = drafters(2, Table(2, 8))[name]
    truth = target.joint(3, eos=1)
    assert distance(whole_loop(3, TableTarget(target), drafter, eos=1), truth) < EXACT


class AmongNeighbours:
    """Every branch for one row; the shipped coins, with fixed seeds, for the others."""

    def __init__(self, coins, row: int, seeds: list[int]) -> None:
        self.enumerated, self.row, self.fixed = coins, row, ProductionCoins(seeds)
        self.open = True

    def round(self, number):
        sides = self.fixed.round(number)
        return _Side(self, sides[0]), _Side(self, sides[1])


class _Side:
    def __init__(self, coins: AmongNeighbours, fixed) -> None:
        self.coins, self.fixed = coins, fixed

    def accept(self, prob, lengths):
        out, row = self.fixed.accept(prob, lengths), self.coins.row
        if self.coins.open:
            out[row] = self.coins.enumerated.accept(prob[[row]], lengths[[row]])[0]
        return out

    def draw(self, weights, index=0):
        out, row = self.fixed.draw(weights, index), self.coins.row
        if self.coins.open:  # a finished row still draws, and it must not matter
            out[row] = self.coins.enumerated.draw(weights[[row]], index)[0]
        return out


@pytest.mark.parametrize(
    "name",
    ["null", "model", "jacobi-uniform", "jacobi-previous", "jacobi-above", "coupled", "lookup"],
)
def test_row_keeps_its_law_among_ragged_neighbours(name):
    """The enumerated row stands between two that come along at their own pace."""
    target, row, limit = Table(2, 7), 1, 3
    make = drafters(2, Table(2, 8))[name]
    seen = set()

    def shipped(coins, rows):
        assert rows == 1
        mixed = AmongNeighbours(coins, row, [3, 4, 5])
        engine = Engine(TableTarget(target), make(), TokenRule(), ConstantLength(2), mixed)

        def close_when_finished(context):
            mixed.open = not context.finished[row]
            seen.add(tuple(context.base))
            return False

        context = run(engine, 3, limit, SpecStats(), close_when_finished)
        return [outputs(context)[row]]

    law = enumerate_law(shipped, at_once=1)
    assert distance(law, target.joint(limit)) < EXACT
    if name not in ("null", "lookup"):
        assert any(len(set(bases)) > 1 for bases in seen)  # it was ragged


# --- hazards: each must be seen -------------------------------------------------------------------


class GreedyDrafter(ModelDrafter):
    """Drafts the argmax, and says that it was drawn from the softmax."""

    class Argmax:
        def draw(self, weights, index=0):
            return weights.argmax(-1)

    def propose(self, context, budget, coins):
        return super().propose(context, budget, self.Argmax())


def test_hazard_greedy_draft_verified_with_softmax_law():
    target, model = Table(3, 0), Table(3, 1)
    broken = model_law(target, model, drafter=GreedyDrafter)
    assert distance(broken, target.joint(4)) > SEEN


def test_greedy_draft_said_to_be_chosen_is_exact():
    """The same drafter with an honest law: one-hot q."""

    class Honest(GreedyDrafter):
        def propose(self, context, budget, coins):
            draft = super().propose(context, budget, coins)
            draft.law = OneHot()
            return draft

    target, model = Table(3, 0), Table(3, 1)
    assert distance(model_law(target, model, drafter=Honest), target.joint(4)) < EXACT


def test_hazard_law_warped_but_not_the_draw():
    class Unwarped(ModelDrafter):
        def propose(self, context, budget, coins):
            draft = super().propose(context, budget, coins)
            if draft.nodes:
                draft.law = Categorical(Warp(temperature=0.5)(draft.law.probs.log()))
            return draft

    target, model = Table(3, 0), Table(3, 1)
    broken = model_law(target, model, drafter=Unwarped)
    assert distance(broken, target.joint(4)) > SEEN


class NoResidual(TokenRule):
    """After a rejection, draws from p."""

    def verify(self, draft, scores, coins):
        accepted = super().verify(draft, scores, coins).accepted
        token = coins.draw(scores.probs[torch.arange(len(accepted)), accepted], 1)
        return prefix_verdict(draft, accepted, token)


def test_hazard_residual_not_subtracted():
    target, model = Table(3, 0), Table(3, 1)
    broken = model_law(target, model, rule=NoResidual())
    assert distance(broken, target.joint(4)) > SEEN


class OneLate(TokenRule):
    """Judges every node by the law after it, not by the one before."""

    def verify(self, draft, scores, coins):
        return super().verify(draft, Scores(scores.probs.roll(-1, 1)), coins)


def test_hazard_laws_of_the_wrong_node():
    target, model = Table(3, 0), Table(3, 1)
    assert distance(model_law(target, model, rule=OneLate()), target.joint(4)) > SEEN


def test_hazard_tokens_after_end_of_sequence():
    def untruncated(context, draft, scores, verdict, eos):
        return advance(context, draft, scores, verdict, None)

    target, model = Table(3, 4), Table(3, 5)
    broken = model_law(target, model, eos=1, advance=untruncated)
    assert distance(broken, target.joint(4, eos=1)) > SEEN


def grid_law(coins: GridCoins, p, q, token=None) -> dict:
    """The law of the first emitted token over a grid of coins; `token`: the draft, else drawn."""
    rows = coins.rows
    proposal, verification = coins.round(0)
    q = torch.tensor(q, dtype=torch.float64).expand(rows, -1)
    drafted = proposal.draw(q) if token is None else torch.full((rows,), token)
    law = Categorical(q[:, None]) if token is None else OneHot()
    draft = Draft(drafted[:, None], torch.ones(rows).long(), law)
    scores = Scores(torch.tensor(p, dtype=torch.float64).expand(rows, 2, -1))
    first = TokenRule().verify(draft, scores, verification).emitted[:, 0]
    counts = torch.bincount(first, minlength=len(p))
    return {x: count / rows for x, count in enumerate(counts.tolist())}


P, Q = [0.25, 0.0, 0.75], [0.5, 0.25, 0.25]


def test_shipped_coins_on_a_grid_are_exact():
    """u runs over 0, 1/4, 2/4, 3/4; p / q and the residual lie on that grid."""
    truth = dict(enumerate(P))
    assert distance(grid_law(GridCoins(4), P, Q), truth) < EXACT
    assert distance(grid_law(GridCoins(4), P, Q, token=1), truth) < EXACT


def test_hazard_not_strict(monkeypatch):
    """`u <= p` takes a token of probability 0 when u = 0."""

    def not_strict(self, prob, live):
        return self._coins.uniform(self._number, ACCEPT, 0, prob.shape[1]) <= prob

    monkeypatch.setattr(_Verifications, "accept", not_strict)
    law = grid_law(GridCoins(4), P, Q, token=1)
    assert law[1] > SEEN
    assert distance(law, dict(enumerate(P))) > SEEN


def test_hazard_one_stream_for_proposals_and_verification():
    """The draft is drawn with u and judged with the same u: accepted and drafted depend."""
    broken = grid_law(GridCoins(4, shared=True), P, Q)
    assert distance(broken, dict(enumerate(P))) > SEEN


def test_production_streams_are_not_shared():
    """With the shipped coins the judgement doesn't depend on what was drawn; shared, it does."""

    class Shared(ProductionCoins):
        def uniform(self, number, purpose, start, count):
            return super().uniform(number, PROPOSE, start, count)

    def accepted_gap(kind) -> float:
        """Acceptance among drafts of token 0 less that among drafts of token 1; q is even."""
        rows, drafted, accepted = 500, [], []
        coins = kind(list(range(rows)))
        for number in range(32):
            proposal, verification = coins.round(number)
            lengths = torch.ones(rows).long()
            drafted.append(proposal.draw(torch.full((rows, 2), 0.5)))
            accepted.append(verification.accept(torch.full((rows, 1), 0.5), lengths)[:, 0].double())
        zero, ok = torch.cat(drafted) == 0, torch.cat(accepted)
        return float(ok[zero].mean() - ok[~zero].mean())

    assert accepted_gap(Shared) == 1.0
    assert abs(accepted_gap(ProductionCoins)) < 0.04  # five deviations; the seeds are fixed


@pytest.mark.parametrize("drafted", [[0, 0], [2, 1]])
def test_fixed_draft_is_exact(drafted):
    """A draft chosen without chance, the same in every round, is exact whatever it is."""
    target = Table(3, 9)
    law = composed(4, TableTarget(target), FixedDrafter(drafted, OneHot()), TokenRule(), 2)
    assert distance(law, target.joint(4)) < EXACT
