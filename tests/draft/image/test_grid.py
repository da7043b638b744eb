"""Forced tokens: what is certain is proposed, and whole outputs keep the target's law."""

from __future__ import annotations

import pytest
import torch
from toys import (
    EXACT,
    FixedDrafter,
    Table,
    TableModel,
    TableTarget,
    context_at,
    distance,
    one_hot,
    whole_loop,
)

from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.image.grid import GridDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.gumbel import GumbelJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.jacobi.refined import RefinedJacobiDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.merged import MergedDrafter
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.draft import Context, Draft, Scores, Verdict
from mmspec.engine.laws import Categorical, OneHot, Opaque, WithoutReplacement
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.token_grid import TokenGrid

END = 2  # codes are 0 and 1
GRID = TokenGrid(2, 1, END)  # code, end, code, end


class Laid(Table):
    """A table of a picture: at forced positions the forced token, elsewhere codes alone."""

    def __init__(self, seed: int, grid: TokenGrid = GRID) -> None:
        super().__init__(3, seed, support=[0, 1])
        self.forced = grid.forced.tolist()

    def __call__(self, prefix):
        token = self.forced[len(prefix)] if len(prefix) < len(self.forced) else -1
        return super().__call__(prefix) if token < 0 else one_hot(token, self.vocab)


def ignorant(seed: int) -> TableModel:
    """A draft model that gives every token a chance everywhere."""
    return TableModel(Table(3, seed))


CHAINS = {
    "model": lambda: ModelDrafter(ignorant(8)),
    "jacobi-uniform": lambda: JacobiDrafter(3, "uniform"),
    "jacobi-previous": lambda: JacobiDrafter(3),
    "jacobi-above": lambda: JacobiDrafter(3, "above", GRID.stride),
    "coupled": lambda: CoupledJacobiDrafter(3),
    "lookup": lambda: PromptLookupDrafter(2),
}
TREES = {
    "tree": lambda: TreeDrafter(ignorant(8), (2, 1)),
    "independent": lambda: TreeDrafter(ignorant(8), (2, 1), "independent"),
    "dynamic": lambda: DynamicTreeDrafter(ignorant(8), 2, 2, 1),
    "recycling": lambda: RecyclingDrafter(3, (2, 1)),
    "merged": lambda: MergedDrafter(
        [CoupledJacobiDrafter(3), TreeDrafter(ignorant(8), (1, 1), "independent")]
    ),
}


def grid_drafter(make, grid: TokenGrid = GRID):
    return lambda: GridDrafter(make(), grid.forced)


@pytest.mark.parametrize(
    ("name", "rule"),
    [*((name, TokenRule) for name in CHAINS), ("model", BlockRule), ("jacobi-previous", BlockRule)],
)
def test_joint_law_of_chains(name, rule):
    target = Laid(7)
    law = whole_loop(GRID.length, TableTarget(target), grid_drafter(CHAINS[name]), rule())
    assert distance(law, target.joint(GRID.length)) < EXACT


LONG = dict.fromkeys(("tree", "independent"), pytest.mark.slow)


@pytest.mark.parametrize("name", [pytest.param(n, marks=LONG.get(n, ())) for n in TREES])
def test_joint_law_of_trees(name):
    target = Laid(7)
    drafter = grid_drafter(TREES[name])
    law = whole_loop(GRID.length, TableTarget(target), drafter, RecursiveRule())
    assert distance(law, target.joint(GRID.length)) < EXACT


@pytest.mark.parametrize("name", ["model", "coupled"])
def test_joint_law_with_rows_of_two_and_a_tail(name):
    grid = TokenGrid(1, 2, END, (END, END))
    target = Laid(3, grid)
    law = whole_loop(grid.length, TableTarget(target), grid_drafter(CHAINS[name], grid))
    assert distance(law, target.joint(grid.length)) < EXACT


@pytest.mark.parametrize("name", [*CHAINS, *TREES, "gumbel"])
def test_drafts_of_ragged_rows(name):
    """Rows at different positions: forced nodes everywhere, with a law of one token, and kept."""
    grid = TokenGrid(9, 2, END, (END,))
    forced = [*grid.forced.tolist(), *[-1] * 9]
    inner = {**CHAINS, **TREES, "gumbel": lambda: GumbelJacobiDrafter(3)}[name]
    drafter, seen = GridDrafter(inner(), grid.forced), []

    class Watched(RecursiveRule if name in TREES else TokenRule):
        def verify(self, draft, scores, coins):
            verdict = super().verify(draft, scores, coins)
            seen.append((list(context_of[0]), draft, verdict))
            return verdict

    context_of = [[0] * 5]
    engine = Engine(
        TableTarget(Laid(4, grid)),
        drafter,
        Watched(),
        ConstantLength(2),
        ProductionCoins([*range(5)]),
    )
    context = run(
        engine,
        5,
        grid.length,
        SpecStats(),
        lambda context: context_of.__setitem__(0, list(context.base)) or False,
    )
    assert context.base == [grid.length] * 5
    checked = 0
    for bases, draft, verdict in seen:
        if not draft.nodes:
            continue
        for row, (base, depths) in enumerate(zip(bases, draft.depths().tolist(), strict=True)):
            for node in range(int(draft.lengths[row])):
                token = forced[base + depths[node]]
                if token < 0:
                    continue
                checked += 1
                assert draft.tokens[row, node] == token
                if not isinstance(draft.law, OneHot):
                    assert draft.law.probs[row, node].tolist() == one_hot(token, 3)
                if depths[node] == 0:
                    assert verdict.accepted[row] > 0
    assert checked > (3 if name == "lookup" else 10)
    assert len({tuple(bases) for bases, _, _ in seen if len(set(bases)) > 1}) > 2  # ragged indeed


def draft_of(law, tokens=((0, 1), (1, 0))) -> Draft:
    return Draft(torch.tensor(tokens), torch.tensor([2, 2]), law)


@pytest.mark.parametrize("kind", [Categorical, WithoutReplacement])
def test_other_nodes_are_left_alone(kind):
    """Row 0 stands at a code and an end, row 1 behind the picture's last code."""
    probs = torch.rand(2, 2, 3)
    inner = draft_of(kind(probs))
    drafter = GridDrafter(FixedDrafter([], None), GRID.forced)
    drafter.drafter.propose = lambda context, budget, coins: inner
    context = Context.empty(2, 4)
    context.lengths = torch.tensor([0, 3])
    drafter.start(context)
    draft = drafter.propose(context, [2, 2], None)
    assert draft.tokens.tolist() == [[0, END], [END, 0]]
    assert isinstance(draft.law, kind)
    assert torch.equal(draft.law.probs[0, 0], probs[0, 0])
    assert torch.equal(draft.law.probs[1, 1], probs[1, 1])  # behind the picture nothing is forced
    assert draft.law.probs[0, 1].tolist() == draft.law.probs[1, 0].tolist() == [0, 0, 1]
    assert inner.tokens.tolist() == [[0, 1], [1, 0]]  # what the drafter holds is not written to


@pytest.mark.parametrize("law", [OneHot(), Opaque()])
def test_laws_without_numbers_stay(law):
    drafter = GridDrafter(FixedDrafter([0, 1], law), GRID.forced)
    context = context_at((0, END), 2, 4)
    drafter.start(context)
    draft = drafter.propose(context, [2, 2], None)
    assert draft.tokens.tolist() == [[0, END]] * 2
    assert draft.law is law


def test_the_inner_drafter_is_told_what_was_proposed():
    told = []

    class Curious(FixedDrafter):
        def observe(self, context, draft, scores, verdict):
            told.append((draft, scores, verdict))

    drafter = GridDrafter(Curious([0, 1], OneHot()), GRID.forced)
    context = context_at((), 1, 4)
    drafter.start(context)
    draft = drafter.propose(context, [2], None)
    scores = Scores(torch.ones(1, 3, 3))
    verdict = Verdict(torch.tensor([2]), draft.tokens, context.last, torch.tensor([3]))
    drafter.observe(context, draft, scores, verdict)
    assert told == [(draft, scores, verdict)]


class Blind(TableModel):
    """A draft model without laws."""

    def extend(self, *given):
        return super().extend(*given) * float("nan")


def test_a_window_whose_tokens_live_on_is_kept_on_a_grid_too():
    """Given up where it drew one token and not another, it would shift the law."""
    drafter = GridDrafter(RefinedJacobiDrafter(Blind(Table(3, 8)), 3), GRID.forced)
    guarded = GuardedDrafter(drafter, 3, 2)
    parts = TableTarget(Laid(7)), guarded, TokenRule(), ConstantLength(2), ProductionCoins([0])
    run(Engine(*parts), 1, GRID.length, SpecStats())
    assert guarded.fault is None
    assert not GuardedDrafter(grid_drafter(CHAINS["model"])(), 3, 2).drafter.carries
