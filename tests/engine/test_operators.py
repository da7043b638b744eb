"""Operators of a round of denoising steps: where a head is small, they are what a round costs.

Each computes next to nothing; their number is the same on every machine.
"""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.toy_chains import LinearGaussian
from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import Engine
from mmspec.engine.stats import SpecStats
from mmspec.models.mar.denoising_target import DenoisingTarget
from mmspec.models.mar.schedule import DiffusionSchedule

STEPS, SIZE = 100, 16


class Operators(TorchDispatchMode):
    """Counts operators."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += 1
        return func(*args, **(kwargs or {}))


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
