"""Operators of a round beside its passes: where networks are small, they are what a round costs.

Each computes next to nothing; their number is the same on every machine.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.toy_chains import LinearGaussian
from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.draft.draft_model import ModelDrafter
from mmspec.draft.guarded import GuardedDrafter
from mmspec.draft.jacobi.coupled import CoupledJacobiDrafter
from mmspec.draft.jacobi.jacobi import JacobiDrafter
from mmspec.draft.null import NullDrafter
from mmspec.draft.prompt_lookup import PromptLookupDrafter
from mmspec.draft.tree.dynamic_tree import DynamicTreeDrafter
from mmspec.draft.tree.fixed_tree import TreeDrafter
from mmspec.draft.tree.token_recycling import RecyclingDrafter
from mmspec.engine.accept.block import BlockRule
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.accept.greedy import GreedyRule
from mmspec.engine.accept.recursive import RecursiveRule
from mmspec.engine.accept.token import TokenRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.engine.warp import Warp
from mmspec.models.mar.denoising_target import DenoisingTarget
from mmspec.models.mar.schedule import DiffusionSchedule
from mmspec.models.target import TokenTarget

STEPS, SIZE = 100, 16


class Operators(TorchDispatchMode):
    """Counts operators, but for those of the networks that it was told to leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.within = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not self.within
        return func(*args, **(kwargs or {}))

    def without(self, decoder) -> None:
        """Leave out what a decoder's passes and output layer take."""

        def left_out(function, *args, **kwargs):
            self.within += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.within -= 1

        for name in ("forward", "logits"):
            setattr(decoder, name, partial(left_out, getattr(decoder, name)))


@pytest.mark.parametrize(
    ("rule", "rows", "most"),
    [
        (ReflectionRule(), 1, 200),
        (ReflectionRule(), 16, 280),
        (GammaMaximalRule(), 1, 450),
        (GaussianBlockRule(), 1, 450),
    ],
)
def test_operators_of_a_round(rule, rows, most):
    """Eight steps are drafted, judged and observed; the toy head has nine of the operators."""
    schedule = DiffusionSchedule.trained("linear").respaced(STEPS)
    wide = LinearGaussian.of_data(torch.full((SIZE,), 0.3, dtype=torch.float64), schedule, 0.3)
    head = LinearGaussian(wide.gain.float(), wide.pull.float(), wide.std.float())
    generator = torch.Generator().manual_seed(0)
    condition = torch.randn(rows, SIZE, generator=generator)
    engine = Engine(
        DenoisingTarget(head, condition),
        FrozenDrafter(schedule),
        rule,
        ConstantLength(8),
        ProductionCoins([*range(rows)]),
    )
    stats = SpecStats()
    with Operators() as operators:
        run(engine, rows, STEPS, stats, first=torch.randn(rows, 1, SIZE, generator=generator))
    assert max(stats.calls) < STEPS / 3
    assert operators.count / max(stats.calls) < most


SAMPLED, GREEDY = Warp(top_k=8), Warp(temperature=0)
GRID, WIDE = 6, 40  # and the most nodes of a draft
DRAFTERS = {
    "model": lambda model, target: ModelDrafter(model),
    "lookup": lambda model, target: PromptLookupDrafter(2),
    "sjd": lambda model, target: JacobiDrafter(16),
    "scd": lambda model, target: CoupledJacobiDrafter(16),
    "tree": lambda model, target: TreeDrafter(model, (3, 2, 2, 1)),
    "grown": lambda model, target: DynamicTreeDrafter(model, 4, 4, 4, 16),
    "recycling": lambda model, target: RecyclingDrafter(16, (3, 2, 2, 1), target),
}


@pytest.mark.parametrize(
    ("kind", "rule", "warp", "rows", "most"),
    [
        ("plain", TokenRule(), SAMPLED, 1, 40),
        ("plain", GreedyRule(), GREEDY, 1, 35),
        ("model", TokenRule(), SAMPLED, 1, 175),
        ("model", TokenRule(), SAMPLED, 2, 240),
        ("model", GreedyRule(), GREEDY, 1, 140),
        ("model", BlockRule(), SAMPLED, 1, 215),
        ("lookup", TokenRule(), SAMPLED, 1, 130),
        ("sjd", TokenRule(), SAMPLED, 1, 84),
        ("scd", TokenRule(), SAMPLED, 1, 106),
        ("tree", RecursiveRule(), SAMPLED, 1, 405),
        ("grown", RecursiveRule(), SAMPLED, 1, 370),
        ("recycling", RecursiveRule(), SAMPLED, 1, 230),
        ("recycling", RecursiveRule(), SAMPLED, 2, 283),
    ],
)
def test_operators_of_a_round_of_tokens(tiny_llamagen, guided_rows, kind, rule, warp, rows, most):
    """Four tokens ahead are drafted, judged and observed; prefills and coins are shared out."""
    operators = Operators()

    def guided(**sizes):
        network = tiny_llamagen(grid=GRID, dtype=torch.float32, **sizes)
        model, *_ = guided_rows(network, [0] * rows, warp=warp, scratch=WIDE)
        operators.without(model.decoder)
        return model

    target, drafter = guided(), NullDrafter()
    if kind != "plain":
        drafter = GuardedDrafter(DRAFTERS[kind](guided(n_kv_head=2), target), 16, WIDE)
    coins = ProductionCoins([*range(rows)])
    engine = Engine(TokenTarget(target), drafter, rule, ConstantLength(4), coins)
    with operators:
        context = run(engine, rows, GRID**2, SpecStats())
    assert getattr(drafter, "fault", None) is None
    assert operators.count / context.round < most


def test_greedy_drafts_flip_no_coins(tiny_llamagen, guided_rows):
    """What a point mass draws is known; the same drafts come out as by coins."""

    class Coinless(ProductionCoins):
        def round(self, number):
            return None, super().round(number)[1]

    outputs = []
    for coins in (Coinless([0, 1]), ProductionCoins([0, 1])):
        target, small = (
            guided_rows(
                tiny_llamagen(grid=GRID, dtype=torch.float32, **sizes),
                [0, 0],
                warp=GREEDY,
                scratch=WIDE,
            )[0]
            for sizes in ({}, {"n_kv_head": 2})
        )
        if not outputs:
            assert small.warp.greedy
        else:
            small.warp = lambda logits: GREEDY(logits)  # says nothing of itself
        engine = Engine(
            TokenTarget(target), ModelDrafter(small), GreedyRule(), ConstantLength(4), coins
        )
        stats = SpecStats()
        outputs.append((run(engine, 2, GRID**2, stats).tokens, stats.calls))
    assert torch.equal(outputs[0][0], outputs[1][0])
    assert outputs[0][1] == outputs[1][1]
