"""Recursive rejection on trees: exact for every way in which siblings come about."""

from __future__ import annotations

import weakref

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
    one_hot,
    probs,
    rule_law,
    whole_loop,
)

from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.shape import TreeShape
from mmspec.engine.accept import recursive_naive, token_naive
from mmspec.engine.accept.chain import pick
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.tree import children, path_verdict
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque, WithoutReplacement
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.proof.enumeration import enumerate_law
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp

KINDS = {"independent": Categorical, "without-replacement": WithoutReplacement, "top": OneHot}
LAWS = KINDS | {"fused": WithoutReplacement}  # of siblings that share no law


@st.composite
def trees(draw, kind: str):
    """(vocab, drafted, parents, p, q) of up to four nodes in any order that puts parents first."""
    vocab, nodes = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    parents = [draw(st.integers(-1, n - 1)) for n in range(nodes)]
    p = [draw(probs(vocab)) for _ in range(nodes + 1)]
    shared = {parent: draw(st.one_of(probs(vocab), st.just(p[parent + 1]))) for parent in parents}
    drafted: list[int] = []
    q = []
    for n, parent in enumerate(parents):
        gone = {drafted[m] for m in range(n) if parents[m] == parent}
        open_ = [x for x in range(vocab) if shared[parent][x] > 0]
        if kind != "independent":
            open_ = [x for x in open_ if x not in gone] or open_  # a law with too few tokens
        drafted.append(draw(st.sampled_from(open_)))
        q.append(one_hot(drafted[n], vocab) if kind == "top" else shared[parent])
        if kind == "fused":
            q[n] = draw(probs(vocab).filter(lambda own, x=drafted[n]: own[x] > 0))
    return vocab, drafted, parents, p, q


def tree_law(vocab, drafted, parents, p, q, kind, filling=0, rule=None) -> dict:
    """The enumerated law of what one verdict emits."""

    def verify(coins, rows):
        nodes = len(drafted)
        tokens = torch.tensor([*drafted, *[0] * filling]).expand(rows, -1)
        behind = torch.tensor([*parents, *[-1] * filling]).expand(rows, -1)
        law = (
            LAWS[kind]()
            if kind == "top"
            else LAWS[kind](categorical(q + [[0.0] * vocab] * filling, vocab, rows).probs)
        )
        draft = Draft(tokens, torch.full((rows,), nodes), law, behind)
        laws = torch.tensor(p + p[-1:] * filling, dtype=torch.float64).expand(rows, -1, -1)
        verdict = (rule or RecursiveRule()).verify(draft, Scores(laws), coins.round(0)[1])
        assert torch.equal(verdict.counts, verdict.accepted + 1)
        kept = tokens.gather(1, verdict.path)
        for row, count in enumerate(verdict.accepted.tolist()):
            assert torch.equal(kept[row, :count], verdict.emitted[row, :count])
        return [
            tuple(out[:count])
            for out, count in zip(verdict.emitted.tolist(), verdict.counts.tolist(), strict=True)
        ]

    return enumerate_law(verify)


@pytest.mark.parametrize("kind", LAWS)
@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data(), st.integers(0, 1))
def test_law_equals_naive(kind, data, filling):
    vocab, drafted, parents, p, q = data.draw(trees(kind))
    truth = recursive_naive.recursive_rule(
        drafted, parents, p, q, LAWS[kind] is not WithoutReplacement
    )
    assert close(tree_law(vocab, drafted, parents, p, q, kind, filling), truth)


def test_children_beyond_the_most_are_not_tried():
    """Three children where two may stand, at the root and behind node 0."""
    parents = torch.tensor([[-1, -1, -1, 2, 0, 0, 0]])
    draft = Draft(torch.zeros(1, 7).long(), torch.tensor([7]), OneHot(), parents, bounds=(2, 2))
    assert children(draft)[0, :3].tolist() == [[0, 1], [4, 5], [-1, -1]]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(chains())
def test_chain_is_judged_as_by_the_token_rule(chain):
    vocab, drafted, p, q = chain
    truth = token_naive.token_rule(drafted, p, q)
    assert close(rule_law(drafted, p, categorical(q, vocab), RecursiveRule()), truth)


@pytest.mark.parametrize("warp", [Warp(), Warp(top_k=2)], ids=str)
@pytest.mark.parametrize("widths", [(2,), (3,), (1, 2), (2, 1)], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_joint_law(kind, widths, warp):
    target, model = Table(3, 0, warp), Table(3, 1, warp)
    drafter = TreeDrafter(TableModel(model), widths, kind)
    law = composed(3, TableTarget(target), drafter, RecursiveRule(), len(widths))
    assert distance(law, target.joint(3)) < EXACT


@pytest.mark.parametrize("kind", KINDS)
def test_joint_law_of_the_whole_loop(kind):
    target, model = Table(2, 7), Table(2, 8)
    law = whole_loop(
        3,
        TableTarget(target),
        lambda: TreeDrafter(TableModel(model), (2, 1), kind),
        rule=RecursiveRule(),
    )
    assert distance(law, target.joint(3)) < EXACT


def test_opaque_is_refused():
    draft = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), Opaque())
    scores = Scores(torch.full((1, 2, 2), 0.5))
    with pytest.raises(ContractError, match="Opaque"):
        RecursiveRule().verify(draft, scores, ProductionCoins([0]).round(0)[1])


# --- hazards --------------------------------------------------------------------------------------


class OriginalLaw(RecursiveRule):
    """Draws without replacement, judged with the q of the first draw."""

    def verify(self, draft, scores, coins):
        if draft.nodes:
            draft.law = Categorical(draft.law.probs)
        return super().verify(draft, scores, coins)


class FirstResidual(RecursiveRule):
    """After the last fall p itself is drawn, not what the falls have left of it."""

    def verify(self, draft, scores, coins):
        verdict = super().verify(draft, scores, coins)
        if not draft.nodes:
            return verdict
        last = verdict.path.gather(1, (verdict.accepted[:, None] - 1).clamp_min(0)).squeeze(1)
        slot = torch.where(verdict.accepted > 0, last + 1, 0)
        token = coins.draw(pick(scores.probs, slot), 1)
        return path_verdict(draft, verdict.path, verdict.accepted, token)


class SortedSiblings(TreeDrafter):
    """Sampled siblings, put in the order of their own probability."""

    def propose(self, context, budget, coins):
        draft = super().propose(context, budget, coins)
        if draft.nodes > 1:
            q = draft.law.probs.gather(2, draft.tokens[..., None]).squeeze(2)
            draft.tokens = draft.tokens.gather(1, q.argsort(dim=1, descending=True, stable=True))
        return draft


@pytest.mark.parametrize("hazard", [OriginalLaw, FirstResidual, SortedSiblings])
def test_hazards_are_seen(hazard):
    def seen(seed: int) -> float:
        target, model = TableTarget(Table(3, seed)), TableModel(Table(3, seed + 50))
        if hazard is SortedSiblings:
            drafter, rule = SortedSiblings(model, (2,)), RecursiveRule()
        else:
            drafter, rule = TreeDrafter(model, (2,)), hazard()
        return distance(composed(2, target, drafter, rule, 1), target.table.joint(2))

    assert max(seen(seed) for seed in range(5)) > 1e-2


def test_reach_is_the_depth_of_real_nodes():
    shape = TreeShape((2, 1, 2))
    draft = shape.draft(torch.zeros(4, 8).long(), OneHot(), [3, 1, 0, 2])
    assert draft.reach().tolist() == [3, 1, 0, 2]
    assert draft.lengths.tolist() == [8, 2, 0, 4]
    assert Draft(torch.zeros(1, 3).long(), torch.tensor([2]), OneHot()).reach().tolist() == [2]


def test_a_shape_keeps_no_laws():
    """They are as wide as the vocabulary, and there is a shape's draft for every row's depth."""
    shape, laws = TreeShape((2, 1)), torch.rand(1, 4, 3)
    draft = shape.draft(torch.zeros(1, 4).long(), Categorical(laws))
    kept = weakref.ref(laws)
    del laws, draft
    assert kept() is None


@pytest.mark.parametrize("seed", range(3))
def test_depths_and_ancestors_equal_a_walk_upwards(seed):
    generator = torch.Generator().manual_seed(seed)
    parents = torch.stack([(torch.rand(9, generator=generator) * (n + 1)).long() for n in range(9)])
    parents = parents.T - 1  # node n's parent is any of -1 … n - 1
    draft = Draft(torch.zeros(9, 9).long(), torch.full((9,), 9), OneHot(), parents)
    lines, depths = draft.ancestors(), draft.depths()
    for row in range(9):
        for n in range(9):
            line, node = set(), n
            while node >= 0:
                line.add(node)
                node = int(parents[row, node])
            assert set(lines[row, n].nonzero().flatten().tolist()) == line
            assert depths[row, n] == len(line) - 1


def test_positions_of_a_tree_are_its_levels():
    target, model = Table(4, 40), Table(4, 41)
    drafter = TreeDrafter(TableModel(model), (3, 2))
    coins = ProductionCoins([1, 2, 3])
    engine = Engine(TableTarget(target), drafter, RecursiveRule(), ConstantLength(2), coins)
    stats = SpecStats()
    run(engine, 3, 20, stats)
    assert len(stats.judged_at) == 2
    assert stats.judged_at[0] >= stats.judged_at[1] > 0
    assert stats.accepted_at[0] >= stats.judged_at[1]  # rows at their end draft one level
    assert sum(stats.accepted_at) == sum(stats.accepted)
    assert max(stats.rounds) == 9
