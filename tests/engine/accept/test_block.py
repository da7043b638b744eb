"""Block verification: exact by enumeration, and never behind the token rule."""

from __future__ import annotations

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
from mmspec.engine.accept import block_naive, token_naive
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.chain import pick, prefix_verdict
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque
from mmspec.engine.warp import Warp


@settings(max_examples=120, deadline=None, derandomize=True)
@given(chains(), st.integers(0, 1))
def test_law_equals_naive(chain, filling):
    vocab, drafted, p, q = chain
    law = categorical(q + [[0.0] * vocab] * filling, vocab)
    assert close(
        rule_law(drafted, p, law, BlockRule(), filling), block_naive.block_rule(drafted, p, q)
    )


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_one_hot_draft_is_judged_as_by_the_token_rule(chain):
    vocab, drafted, p, _ = chain
    truth = token_naive.token_rule(drafted, p, [one_hot(x, vocab) for x in drafted])
    assert close(rule_law(drafted, p, OneHot(), BlockRule()), truth)


@pytest.mark.parametrize("warp", [Warp(), Warp(0.6), Warp(top_k=2), Warp(1.5, 3, 0.8)], ids=str)
@pytest.mark.parametrize("gamma", [1, 2, 3])
def test_joint_law_with_a_draft_model(gamma, warp):
    target, model = Table(3, 0, warp), Table(3, 1, warp)
    law = composed(4, TableTarget(target), ModelDrafter(TableModel(model)), BlockRule(), gamma)
    assert distance(law, target.joint(4)) < EXACT


@pytest.mark.parametrize("name", ["model", "jacobi-previous", "jacobi-above", "coupled", "lookup"])
def test_joint_law_of_the_whole_loop(name):
    target = Table(2, 7)
    drafter = drafters(2, Table(2, 8))[name]
    law = whole_loop(4, TableTarget(target), drafter, rule=BlockRule())
    assert distance(law, target.joint(4)) < EXACT


def accepted(rule, p: list[list[float]], q: list[list[float]]) -> float:
    """Mean accepted tokens of a draft of two, its laws the same for every context."""
    mean = 0.0
    for first, a in enumerate(q[0]):
        for second, b in enumerate(q[1]):
            law = rule([first, second], p, q) if a * b else {}
            mean += a * b * sum(w * (len(out) - 1) for out, w in law.items())
    return mean


def test_known_toy():
    """Sun et al. 2024, section 2: p = (1/3, 2/3), q = (2/3, 1/3), γ = 2: 10/9 and 11/9."""
    p, q = [[1 / 3, 2 / 3]] * 3, [[2 / 3, 1 / 3]] * 2
    assert accepted(token_naive.token_rule, p, q) == pytest.approx(10 / 9, abs=1e-12)
    assert accepted(block_naive.block_rule, p, q) == pytest.approx(11 / 9, abs=1e-12)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains().filter(lambda chain: len(chain[1]) == 2))
def test_never_behind_the_token_rule(chain):
    _, _, p, q = chain
    assert accepted(block_naive.block_rule, p, q) >= accepted(token_naive.token_rule, p, q) - 1e-12


def test_draft_from_the_target_itself_always_stands():
    """r = 1 and p = q: h is 0/0, and must be 1."""
    p = [[0.25, 0.75], [0.5, 0.5], [0.125, 0.875]]
    law = rule_law([1, 0], p, categorical(p[:2], 2), BlockRule())
    assert close(law, {(1, 0, 0): 0.125, (1, 0, 1): 0.875})


def test_what_is_refused():
    chain = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), Opaque())
    tree = Draft(torch.zeros(1, 2).long(), torch.tensor([2]), OneHot(), torch.full((1, 2), -1))
    coins = ProductionCoins([0]).round(0)[1]
    for draft, match in ((chain, "Opaque"), (tree, "tree")):
        scores = Scores(torch.full((1, draft.nodes + 1, 2), 0.5))
        with pytest.raises(ContractError, match=match):
            BlockRule().verify(draft, scores, coins)


class TokenResidual(BlockRule):
    """The token rule's residual [p − q]+ in place of [r p − q]+."""

    def verify(self, draft, scores, coins):
        verdict = super().verify(draft, scores, coins)
        if not draft.nodes:
            return verdict
        rest = (scores.probs[:, :-1] - draft.law.probs).clamp_min(0)
        rest = pick(rest, verdict.accepted.clamp_max(draft.nodes - 1))
        whole = (verdict.accepted == draft.lengths) | (rest.sum(-1) == 0)
        weights = torch.where(whole[:, None], pick(scores.probs, verdict.accepted), rest)
        return prefix_verdict(draft, verdict.accepted, coins.draw(weights))


class Forgetful(BlockRule):
    """The first ratio is taken to be 1."""

    def verify(self, draft, scores, coins):
        q = torch.cat([scores.probs[:, :1], draft.law.probs[:, 1:]], 1)
        return super().verify(Draft(draft.tokens, draft.lengths, Categorical(q)), scores, coins)


@pytest.mark.parametrize("rule", [TokenResidual, Forgetful])
def test_hazards_are_seen(rule):
    p = [[0.25, 0.5, 0.25], [0.1, 0.2, 0.7], [0.2, 0.3, 0.5]]
    q = [[0.5, 0.25, 0.25], [0.9, 0.05, 0.05]]
    law = rule_law([0, 0], p, categorical(q, 3), rule())
    truth = block_naive.block_rule([0, 0], p, q)
    assert max(abs(law.get(x, 0) - truth.get(x, 0)) for x in law.keys() | truth.keys()) > 1e-3
