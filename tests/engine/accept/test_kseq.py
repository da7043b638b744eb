"""K-SEQ: exact, equal to its twin, and between the token rule and the best that K draws allow."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_recursive import tree_law
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
    probs,
    rule_law,
)

from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.engine.accept import kseq, kseq_naive, token_naive
from mmspec.engine.accept.kseq import KSeqRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import ContractError, OneHot, WithoutReplacement


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_law_equals_naive(data):
    vocab, k = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 3))
    q = data.draw(probs(vocab))
    drafted = [data.draw(st.sampled_from([x for x in range(vocab) if q[x]])) for _ in range(k)]
    p = [data.draw(st.one_of(probs(vocab), st.just(q)))]
    p += [data.draw(probs(vocab)) for _ in range(k)]
    law = tree_law(vocab, drafted, [-1] * k, p, [q] * k, "independent", rule=KSeqRule())
    # ρ is the upper end of sixteen halvings here, of two hundred in the twin
    truth = kseq_naive.k_seq_rule(drafted, p, q)
    assert all(abs(law.get(x, 0) - truth.get(x, 0)) < 1e-3 for x in law.keys() | truth.keys())


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_chain_is_judged_as_by_the_token_rule(chain):
    vocab, drafted, p, q = chain
    truth = token_naive.token_rule(drafted, p, q)
    assert close(rule_law(drafted, p, categorical(q, vocab), KSeqRule()), truth)


@pytest.mark.parametrize("widths", [(2,), (3,), (1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_joint_law(widths, seed):
    """To 1e-9 although ρ is not: every ρ above the best is exact."""
    target, model = Table(3, seed), Table(3, seed + 50)
    drafter = TreeDrafter(TableModel(model), widths, "independent")
    law = composed(3, TableTarget(target), drafter, KSeqRule(), len(widths))
    assert distance(law, target.joint(3)) < EXACT


def test_hazard_is_seen(monkeypatch):
    """With ρ = 1 each sibling is judged as if it were the only one."""

    def alone(p, q, count):
        common = torch.minimum(p, q)
        return common, common.sum(-1, keepdim=True)

    def seen(seed: int) -> float:
        target, model = TableTarget(Table(3, seed)), TableModel(Table(3, seed + 50))
        drafter = TreeDrafter(model, (2,), "independent")
        return distance(composed(2, target, drafter, KSeqRule(), 1), target.table.joint(2))

    assert max(seen(seed) for seed in range(5)) < EXACT
    monkeypatch.setattr(kseq, "_common", alone)
    assert max(seen(seed) for seed in range(5)) > 1e-2


@pytest.mark.parametrize("law", [OneHot(), WithoutReplacement(torch.ones(1, 1, 2) / 2)])
def test_other_laws_are_refused(law):
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), law)
    with pytest.raises(ContractError, match=type(law).__name__):
        KSeqRule().verify(
            draft, Scores(torch.full((1, 2, 2), 0.5)), ProductionCoins([0]).round(0)[1]
        )
