"""Several drafters under one root: exact together, and each is told about its own nodes."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, context_at, distance, whole_loop

from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.shared_coins import OffsetCoins
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.merged import MergedDrafter
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Draft, Scores
from mmspec.engine.laws import Categorical, ContractError, OneHot, Opaque
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats

PARTS = {
    "lookup": lambda vocab, model: PromptLookupDrafter(2),
    "recycling": lambda vocab, model: RecyclingDrafter(vocab, (2, 1)),
    "jacobi": lambda vocab, model: JacobiDrafter(vocab),
    "coupled": lambda vocab, model: CoupledJacobiDrafter(vocab),
    "tree": lambda vocab, model: TreeDrafter(TableModel(model), (2, 1), "independent"),
    "without": lambda vocab, model: TreeDrafter(TableModel(model), (2, 1)),
    "chain": lambda vocab, model: TreeDrafter(TableModel(model), (1, 1), "independent"),
    "dynamic": lambda vocab, model: DynamicTreeDrafter(TableModel(model), 2, 2, 1),
}


class Chosen:
    """Chains of its own, whatever stands before."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = torch.tensor([tokens])

    def propose(self, context, budget, coins):
        return Draft(self.tokens, torch.tensor([self.tokens.shape[1]]), OneHot())


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_deepest_draft_can_stand_as_a_whole(order):
    chains = [Chosen(1), Chosen(2, 1, 0)]
    drafter = MergedDrafter([chains[n] for n in order])
    draft = drafter.propose(context_at((), 1, 9), [3], ProductionCoins([1]).round(0)[0])
    laws = torch.nn.functional.one_hot(torch.tensor([2, 0, 1, 0, 0]), 3)
    if order == (1, 0):  # slots of nodes follow the order of the drafters
        laws = torch.nn.functional.one_hot(torch.tensor([2, 1, 0, 0, 0]), 3)
    coins = ProductionCoins([1]).round(0)[1]
    verdict = RecursiveRule().verify(draft, Scores(laws[None].double()), coins)
    assert draft.levels == 3
    assert verdict.accepted.tolist() == [3]
    assert verdict.emitted[0, :3].tolist() == [2, 1, 0]


def merged(names: list[str], vocab: int, model: Table, nodes: int = 256) -> MergedDrafter:
    return MergedDrafter([PARTS[name](vocab, model) for name in names], nodes)


@pytest.mark.parametrize(
    ("names", "limit"),
    [
        (["jacobi", "chain"], 4),
        (["coupled", "chain"], 4),
        (["chain", "coupled"], 4),
        (["coupled", "without"], 4),
        (["lookup", "jacobi"], 5),
        (["lookup", "dynamic"], 6),
        (["recycling", "lookup", "chain"], 4),
    ],
    ids=str,
)
def test_joint_law_of_the_whole_loop(names, limit):
    target, model = Table(2, 7), Table(2, 8)
    law = whole_loop(
        limit, TableTarget(target), lambda: merged(names, 2, model), rule=RecursiveRule()
    )
    assert distance(law, target.joint(limit)) < EXACT


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("names", [["lookup", "jacobi", "chain"], ["without", "coupled"]], ids=str)
def test_joint_law_where_not_all_nodes_fit(names, nodes):
    target, model = Table(2, 1), Table(2, 2)
    law = whole_loop(
        3, TableTarget(target), lambda: merged(names, 2, model, nodes), rule=RecursiveRule()
    )
    assert distance(law, target.joint(3)) < EXACT


class Siamese(MergedDrafter):
    """The hazard: two drafters draw with the same coins."""

    def propose(self, context, budget, coins):
        class Deaf(OffsetCoins):
            def draw(self, weights, index=0):
                return self._coins.draw(weights, index)

        return self._merge([d.propose(context, budget, Deaf(coins, 0)) for d in self.drafters])


def test_hazard_shared_coins():
    """Two copies of one drafter: their tokens agree, which independent ones seldom do."""
    model = Table(4, 5)
    agree = {}
    for kind in (MergedDrafter, Siamese):
        drafter = kind([PARTS["chain"](4, model), PARTS["chain"](4, model)])
        context = context_at((), 200, 9)
        drafter.start(context)
        draft = drafter.propose(context, [1] * 200, ProductionCoins(list(range(200))).round(0)[0])
        agree[kind] = (draft.lengths == 1).double().mean()  # one node of the two is left
    expected = sum(p * p for p in model(()))
    assert agree[Siamese] == 1
    assert abs(agree[MergedDrafter] - expected) < 5 * 0.5 / 200**0.5


class Part:
    """A drafter of a fixed draft that remembers what it was told."""

    def __init__(self, draft: Draft) -> None:
        self.draft = draft

    def start(self, context) -> None:
        pass

    def propose(self, context, budget, coins):
        return self.draft

    def observe(self, context, draft, scores, verdict) -> None:
        self.told = draft.lengths.tolist(), scores.probs


def test_layout_by_hand():
    """Row 0 has a chain of one and a tree of three, row 1 a chain of two and a tree of one."""
    chain = Draft(
        torch.tensor([[1, 9], [1, 2]]),
        torch.tensor([1, 2]),
        Categorical(torch.full((2, 2, 4), 0.25)),
    )
    tree = Draft(
        torch.tensor([[3, 0, 2], [3, 9, 9]]),
        torch.tensor([3, 1]),
        OneHot(),
        torch.tensor([[-1, -1, 0], [-1, -1, -1]]),
        bounds=(2, 2),
    )
    tree.tokens[1, 1:] = 0
    chain.tokens[0, 1] = 0
    parts = [Part(chain), Part(tree)]
    drafter = MergedDrafter(parts, nodes=3)
    context = context_at((), 2, 9)
    draft = drafter.propose(context, [2, 2], ProductionCoins([0, 1]).round(0)[0])
    assert draft.lengths.tolist() == [3, 3]
    assert draft.tokens.tolist() == [[1, 3, 0], [1, 2, 3]]
    assert draft.parents.tolist() == [[-1, -1, -1], [-1, 0, -1]]
    assert (draft.levels, draft.most_children) == (2, 3)
    assert draft.law.probs[0, 0].tolist() == [0.25] * 4
    assert draft.law.probs[0, 1].tolist() == [0, 0, 0, 1]
    scores = torch.rand(2, 4, 4)
    drafter.observe(context, draft, Scores(scores), None)
    lengths, seen = parts[0].told
    assert lengths == [1, 2]
    assert torch.equal(seen[0, :2], scores[0, [0, 1]])
    assert torch.equal(seen[1], scores[1, [0, 1, 2]])
    lengths, seen = parts[1].told
    assert lengths == [2, 1]  # of three nodes two fitted
    assert torch.equal(seen[0, :3], scores[0, [0, 2, 3]])
    assert torch.equal(seen[1, :2], scores[1, [0, 3]])


def test_unknown_laws_are_refused():
    opaque = Draft(torch.zeros(1, 1).long(), torch.tensor([1]), Opaque())
    drafter = MergedDrafter([Part(opaque), JacobiDrafter(3)])
    context = context_at((), 1, 9)
    drafter.start(context)
    with pytest.raises(ContractError, match="Opaque"):
        drafter.propose(context, [1], ProductionCoins([0]).round(0)[0])


def test_a_second_drafter_helps():
    """More is accepted than of either alone, on the same target."""
    target, model = Table(4, 3), Table(4, 4)

    def accepted(drafter) -> float:
        stats = SpecStats()
        coins = ProductionCoins(list(range(20)))
        engine = Engine(TableTarget(target), drafter, RecursiveRule(), ConstantLength(2), coins)
        run(engine, 20, 40, stats)
        return stats.mean_acceptance_length

    both = accepted(merged(["coupled", "chain"], 4, model))
    assert both > accepted(PARTS["coupled"](4, model))
    assert both > accepted(PARTS["chain"](4, model))
