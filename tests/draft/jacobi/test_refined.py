"""A window that a smaller model refines: exact by enumeration, and what it is for."""

from __future__ import annotations

import pytest
import torch
from toys import EXACT, Table, TableModel, TableTarget, distance, whole_loop

from mmspec.draft.jacobi.proactive import ProactiveDrafter
from mmspec.draft.jacobi.refined import RefinedJacobiDrafter
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats


@pytest.mark.parametrize(
    ("refinements", "vocab", "limit", "window", "widths"),
    [
        (1, 2, 4, 2, ()),
        (2, 2, 3, 2, ()),
        (1, 2, 4, 3, ()),
        (1, 3, 3, 2, ()),
        (1, 2, 4, 2, (2,)),
        (1, 2, 4, 3, (2, 2)),
        (2, 2, 3, 2, (2, 2)),
        (1, 3, 3, 2, (2, 1)),
    ],
    ids=str,
)
def test_joint_law_of_the_whole_loop(refinements, vocab, limit, window, widths):
    target, small = Table(vocab, 7), Table(vocab, 8)
    law = whole_loop(
        limit,
        TableTarget(target),
        lambda: RefinedJacobiDrafter(
            TableModel(small), vocab, refinements=refinements, widths=widths
        ),
        RecursiveRule() if widths else TokenRule(),
        length=ConstantLength(window),
    )
    assert distance(law, target.joint(limit)) < EXACT


def emitted(drafter, target, rows=24, limit=24) -> SpecStats:
    stats = SpecStats()
    rule = RecursiveRule() if drafter.widths else TokenRule()
    parts = rule, ConstantLength(8), ProductionCoins([*range(rows)])
    run(Engine(TableTarget(target), drafter, *parts), rows, limit, stats)
    return stats


def near(table: Table, share: float, seed: int) -> Table:
    """Laws that are a table's in part and another's in part."""
    other = Table(table.vocab, seed)

    class Mixed(Table):
        def __call__(self, prefix):
            both = zip(table(prefix), other(prefix), strict=True)
            return [share * one + (1 - share) * two for one, two in both]

    return Mixed(table.vocab, seed)


def test_a_drafter_that_knows_the_target_makes_windows_last():
    """As its own drafter it foresees itself, a place further with every refinement."""
    target = Table(6, 3)
    coupled = emitted(ProactiveDrafter(6, widths=()), target).mean_acceptance_length
    known = [
        emitted(RefinedJacobiDrafter(TableModel(near(target, share, 5)), 6, refinements=n), target)
        for share, n in ((0.8, 2), (1.0, 1), (1.0, 2), (1.0, 8))
    ]
    lengths = [stats.mean_acceptance_length for stats in known]
    assert coupled < lengths[0] < lengths[2]
    assert lengths[1] < lengths[2] < lengths[3]
    assert lengths[3] == 24 / 3  # 9 at a time


def test_candidates_make_it_last_longer():
    target, small = Table(6, 3), Table(6, 5)
    lengths = [
        emitted(RefinedJacobiDrafter(TableModel(small), 6, widths=widths), target)
        for widths in ((), (3, 3))
    ]
    alone, beside = (stats.mean_acceptance_length for stats in lengths)
    assert beside > 1.05 * alone


@pytest.mark.parametrize("widths", [(), (2, 2)], ids=str)
@pytest.mark.parametrize("seed", [5, 3], ids=["another", "the target itself"])
def test_rows_draft_what_they_would_alone(widths, seed):
    """However far others are ahead, and so the drafter has more or less of each row to catch up."""
    target, small = Table(4, 3), Table(4, seed)

    def texts(seeds):
        drafter = RefinedJacobiDrafter(TableModel(small), 4, widths=widths)
        rule = RecursiveRule() if widths else TokenRule()
        parts = rule, ConstantLength(5), ProductionCoins(seeds)
        context = run(Engine(TableTarget(target), drafter, *parts), len(seeds), 12, SpecStats())
        return context.tokens[:, :12].tolist()

    seeds = [*range(20)]
    assert texts(seeds) == [texts([seed])[0] for seed in seeds]


@pytest.mark.parametrize("widths", [(), (2,)], ids=str)
def test_a_drafter_without_laws_is_an_even_one(widths):
    """The token that no law gives is never drawn for it, and the output stays the target's."""

    class Broken(TableModel):
        def extend(self, tokens, start, draft=None):
            return torch.full_like(super().extend(tokens, start), float("nan"))

    target = Table(2, 7)
    law = whole_loop(
        3,
        TableTarget(target),
        lambda: RefinedJacobiDrafter(Broken(Table(2, 8)), 2, refinements=1, widths=widths),
        RecursiveRule() if widths else TokenRule(),
    )
    assert distance(law, target.joint(3)) < EXACT
