"""Couplings of denoising steps on a chain whose law is known: calls saved, and what is bent."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import torch

from mmspec.draft.denoising.frozen import FrozenDrafter
from mmspec.draft.denoising.small_head import DenoisingDrafter
from mmspec.engine.accept.gaussian.block import GaussianBlockRule
from mmspec.engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from mmspec.engine.accept.gaussian.reflection import ReflectionRule
from mmspec.engine.coins import ProductionCoins
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.loop import run
from mmspec.engine.protocols import AcceptanceRule, Drafter, Engine
from mmspec.engine.stats import SpecStats
from mmspec.methods import SpecConfig
from mmspec.models.mar.denoising_target import DenoisingTarget
from mmspec.models.mar.iterations import MarPlan
from mmspec.models.mar.schedule import DiffusionSchedule
from mmspec.pipelines.continuous.speculation import ContinuousSpeculation
from mmspec.pipelines.continuous.stats import ContinuousStats

from .toy_chains import LinearGaussian, MarkovHead, MarkovTokens

STEPS, SIZE, SPREAD = 100, 16, 0.3  # of MAR's head: steps, numbers in a token; the data's deviation
LENGTHS = (2, 4, 8, 16)
SOFTENINGS = (1.0, 10.0, 20.0, 42.0)
RULES: dict[str, AcceptanceRule] = {
    "reflection": ReflectionRule(),
    "gamma-maximal": GammaMaximalRule(),
    "block": GaussianBlockRule(),
}
SPAN, AT_ONCE = 4, 256  # tokens that are drafted together, pictures
SLOPE = 0.6
GAPS = {"near": 0.002, "far": 0.1}  # the drafter's means are so much too small


def denoising_calls(pipe: Any = None, samples: int = 10) -> dict[str, Any]:
    """Target head calls per token of `STEPS` steps by drafter, rule and draft length.

    The data is N(μ, 0.3²) in 16 coordinates, the small head takes its deviation for 5 % larger, its
    means to be 0.05 deviations off and the variances' share to be 0.35 in place of 0.3. `most` is
    the mean of the slowest in batches of 64: its calls are what a batch waits for.
    """
    schedule = DiffusionSchedule.trained("cosine").respaced(STEPS)
    spread = torch.full((SIZE,), SPREAD, dtype=torch.float64)
    target = LinearGaussian.of_data(spread, schedule, 0.3)
    small = LinearGaussian.of_data(spread * 1.05, schedule, 0.35)
    out: dict[str, Any] = {}
    for drafter in ("frozen", "denoiser"):
        for name, rule in RULES.items():
            for length in LENGTHS:
                batches = [
                    _denoise(target, small, schedule, drafter, rule, length, seed)
                    for seed in range(max(1, samples // 5))
                ]
                total = batches[0].merged(batches[1:])
                out[f"{drafter}, {name}, {length}"] = {
                    "calls": total.nfe,
                    "most": statistics.fmean(max(batch.calls) for batch in batches),
                    "mean_acceptance_length": total.mean_acceptance_length,
                    "acceptance": statistics.fmean(total.acceptance_by_position),
                }
    return out


def _denoise(
    target: LinearGaussian,
    small: LinearGaussian,
    schedule: DiffusionSchedule,
    drafter: str,
    rule: AcceptanceRule,
    length: int,
    seed: int,
    rows: int = 64,
) -> SpecStats:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    condition = (1 - SPREAD**2) ** 0.5 * normal(rows, SIZE)
    drafts: Drafter = FrozenDrafter(schedule)
    if drafter == "denoiser":
        drafts = DenoisingDrafter(small, condition + 0.05 * SPREAD * normal(rows, SIZE))
    coins = ProductionCoins([seed * rows + row for row in range(rows)])
    judge = DenoisingTarget(target, condition)
    engine = Engine(judge, drafts, rule, ConstantLength(length), coins)
    stats = SpecStats()
    run(engine, rows, STEPS, stats, first=normal(rows, 1, SIZE))
    return stats


def cspd_bias(pipe: Any = None, samples: int = 10) -> dict[str, Any]:
    """Bias of the law of whole tokens against the target's, and share of drafts that stand.

    Tokens are a Markov chain of 16 coordinates: each is denoised in 100 steps with the mean
    1 + 0.6 times the token before it and the data's deviation 0.3. They are drawn as the pipeline
    draws them: the first by the target alone, the next four together. The target's four are
    independent, given the first; the drafter reads its own. It is the target's own head, told
    means that are 0.002 too small ("near": an exact rule keeps two thirds) or 0.1 ("far"). Of the
    last token: `mean` is off by so many deviations, the deviation by `deviation`, its correlation
    with the token before by `correlation`; the standard error of each is about `error`. "exact" is
    method "cspd", which drafts one token at a time; "together" is the target without a drafter.
    """
    schedule = DiffusionSchedule.trained("cosine").respaced(STEPS)
    spread = torch.full((SIZE,), SPREAD, dtype=torch.float64)
    head = MarkovHead.of_data(spread, schedule, 0.3)
    methods = {"exact": SpecConfig("cspd")}
    for kappa in SOFTENINGS:
        config = SpecConfig("cspd-independent", softening=kappa, num_draft_tokens=SPAN)
        methods[f"softening {kappa:g}"] = config
    batches = max(1, samples // 5)
    found = {"together": _bias(head, SpecConfig("plain"), 0.0, batches, (1, SPAN))}
    for name, gap in GAPS.items():
        for method, config in methods.items():
            found[f"{name}, {method}"] = _bias(head, config, gap, batches)
    return found


def _bias(
    head: MarkovHead,
    config: SpecConfig,
    gap: float,
    batches: int,
    spans: Sequence[int] | None = None,
) -> dict[str, float]:
    tokens = SPAN + 1
    plan = MarPlan(tokens, tokens, diffusion_steps=head.steps)
    outputs, accepted, drafted = [], 0, 0
    for batch in range(batches):
        seeds = range(batch * AT_ONCE, (batch + 1) * AT_ONCE)
        target, small = (MarkovTokens(head, plan, seeds, 1 - off, SLOPE) for off in (0.0, gap))
        stats = ContinuousStats()
        model: Any = small
        speculation = ContinuousSpeculation(config.resolve("continuous"), plan, 1, model, stats)
        drawn = torch.zeros(AT_ONCE, tokens, SIZE, dtype=torch.float64)
        for prediction in target.predictions(drawn, spans or speculation.spans()):
            one, several = prediction.iterations.start, prediction.iterations.stop
            drawn[:, one:several] = speculation.draw(prediction).unflatten(0, (AT_ONCE, -1))
        outputs.append(drawn)
        accepted, drafted = accepted + sum(stats.accepted), drafted + sum(stats.drafted)
    before, last = torch.cat(outputs)[:, -2:].transpose(0, 1).flatten(1)
    mean, deviation, correlation = (law[0].item() for law in target.law(tokens))
    return {
        "accepted": accepted / max(1, drafted),
        "mean": (last.mean().item() - mean) / deviation,
        "deviation": last.std().item() / deviation - 1,
        "correlation": torch.corrcoef(torch.stack([before, last]))[0, 1].item() - correlation,
        "error": len(last) ** -0.5,
    }
