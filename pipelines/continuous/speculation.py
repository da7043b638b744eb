"""Speculation inside MAR's iterations: tokens are rows of the loop, denoising steps positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ...draft.denoising.aligned import AlignedDrafter
from ...draft.guarded import GuardedDrafter
from ...engine.accept.gaussian.gamma_maximal import GammaMaximalRule
from ...engine.laws import TargetError
from ...engine.length.guard import Guard
from ...engine.loop import run
from ...engine.protocols import Drafter, Engine
from ...errors import InputError
from ...methods import ResolvedConfig
from ...models.mar.denoising_target import CountedDenoiser, DenoisingTarget, walk
from ...models.mar.iterations import HeadPrediction, MarBackbone, MarPlan, plainly
from .stats import ContinuousStats

PREFILLED = 0.05  # share of the tokens that the target draws alone before drafts are not taken back


@dataclass
class ContinuousSpeculation:
    """Speculation over the denoising steps of predictions, by a configuration.

    Attributes:
        groups: rows of the target's head a token.
        small: a smaller model of the same pictures, of those that need one.
        guard: of the predictions that are drafted for; None: none watches.
        drafted: of the steps of every token of the last prediction that may be drafted (the target
            makes the last, which has no noise), the share that was and stood `[R]`.
    """

    config: ResolvedConfig
    plan: MarPlan
    groups: int
    small: MarBackbone | None
    stats: ContinuousStats
    on_engine: Callable[[Engine], None] | None = None
    guard: Guard | None = None

    def __post_init__(self) -> None:
        check_plan(self.config, self.plan)
        # what drafts nothing is not judged
        self.rule = self.config.build_rule({}) if self.config.drafts else GammaMaximalRule()
        self.drafted = torch.zeros(0)
        self.stats.method = self.config.method
        self.stats.contract = self.config.contract

    def spans(self) -> Iterator[int]:
        """Iterations of every prediction, each said when it is asked for.

        Where whole tokens are judged each by itself, several are scored behind one set of known
        tokens, once the first few are drawn and while there is a drafter.
        """
        done = 0
        while done < self.plan.iterations:
            known, span = self.plan.length - self.plan.masked[done], 1
            if self.config.rule.independent and not self._alone(known):
                most = self.config.draft_size().first_drafted
                span = min(most, self.plan.iterations - done)
            done += span
            yield span

    def draw(self, prediction: HeadPrediction) -> Tensor:
        """Tokens `[R, C]`."""
        alone, guard = self._alone(prediction.known.shape[1]), self.guard
        if guard is None or self.config.rule.independent or self.config.drafter_only:
            return self._plainly(prediction) if alone else self._drafted(prediction)
        rows, steps = len(prediction.condition), prediction.denoiser.steps
        drafts = not alone and guard.drafts(rows)
        with guard.unit(rows, steps, drafts):
            return self._drafted(prediction) if drafts else self._plainly(prediction)

    def _drafted(self, prediction: HeadPrediction) -> Tensor:
        """Tokens `[R, C]` of steps that are drafted and judged."""
        if self.config.drafter.whole:
            return self._aligned(prediction)
        target = CountedDenoiser(prediction.denoiser)
        small = condition = None
        if self.small is not None:
            small = CountedDenoiser(self.small.denoiser(target.steps))
            condition = partial(self.small.told, *prediction.asked, target.steps)
        drafter = self.config.build_drafter(
            {
                "schedule": lambda: prediction.denoiser.schedule,
                "temperature": lambda: self.plan.temperature,
                "learned_variance": lambda: self.plan.learned_variance,
                "small": lambda: small,
                "condition": lambda: condition,
            }
        )
        judge = DenoisingTarget(target, prediction.condition)
        tokens = self._run(prediction, judge, drafter, _wide(prediction, 1), target)
        if small is not None:
            self._count(1, small.calls, small.rows)
        return tokens

    def _plainly(self, prediction: HeadPrediction) -> Tensor:
        """Denoise step by step without the loop, which would draft and judge nothing."""
        steps, tokens = prediction.denoiser.steps, len(prediction.condition)
        small = self.config.drafter_only
        self.drafted = torch.full((tokens,), float(small))
        with self.stats.phase("draft" if small else "target"):
            drawn = plainly(prediction)
            # waits for the device, so that the phase has all its seconds
            wrong = (~drawn.isfinite().all(-1)).nonzero().flatten().tolist()
        prefilled = self._prefilled(prediction.known.shape[1])
        self.stats.observe_plain(tokens, steps, self.groups, small, prefilled)
        if wrong:
            picture, number = divmod(wrong[0], prediction.positions.shape[1])
            raise TargetError(
                f"token {int(prediction.positions[picture, number])} of picture {picture} is no "
                "numbers: the diffusion head overflows; load the model in float32, or check its "
                "weights"
            )
        return drawn

    def _aligned(self, prediction: HeadPrediction) -> Tensor:
        """Walk both models to the last noisy step with shared noises; the loop does the rest."""
        assert self.small is not None
        target = CountedDenoiser(prediction.denoiser)
        noise = _wide(prediction, target.steps - 1)
        with self.stats.phase("target"):
            reached = walk(target, noise, prediction.condition)
        drafter = AlignedDrafter(self.small, prediction, noise)
        judge = DenoisingTarget(target, prediction.condition, left=2)
        tokens = self._run(prediction, judge, drafter, reached[:, None], target)
        self._count(drafter.backbone_calls, drafter.head_calls, drafter.head_rows)
        return tokens

    def _count(self, backbone_calls: int, head_calls: int, head_rows: int) -> None:
        self.stats.drafter_backbone_calls += backbone_calls
        self.stats.drafter_head_calls += head_calls
        self.stats.drafter_head_rows += head_rows * self.groups

    def _run(
        self,
        prediction: HeadPrediction,
        judge: DenoisingTarget,
        drafter: Drafter,
        first: Tensor,
        target: CountedDenoiser,
    ) -> Tensor:
        """The last of the judge's steps from `first [R, 1, C]` on, `[R, C]`."""
        length = self.config.build_length({})
        guarded = GuardedDrafter(drafter, None, self.config.draft_size().deepest)
        engine = Engine(judge, guarded, self.rule, length, prediction.coins)
        if self.on_engine is not None:
            self.on_engine(engine)
        counts = ContinuousStats(self.stats.method, self.stats.contract)
        rows, limit = len(first), judge.left
        context = run(engine, rows, limit, counts, device=first.device, first=first)
        counts.fault = guarded.fault
        counts.head_calls, counts.head_rows = target.calls, target.rows * self.groups
        self.drafted = torch.tensor(counts.accepted) / max(1, limit - 1)
        self.stats.observe_loop(counts, walked=target.steps - limit)
        return context.tokens[:, limit - 1]

    def _alone(self, known: int) -> bool:
        """True if the target draws without drafts, where so many tokens are known."""
        given_up = not self.config.drafts or self.stats.fault is not None
        return given_up or self._prefilled(known)

    def _prefilled(self, known: int) -> bool:
        """True if so few tokens are known that the method does not draft yet."""
        return self.config.rule.independent and known < PREFILLED * self.plan.length


def check_plan(config: ResolvedConfig, plan: MarPlan) -> None:
    """Raise an `InputError` for a plan whose steps a configuration can't couple."""
    if not config.drafts:
        return
    if plan.temperature == 0:
        raise InputError(
            f"at temperature 0 no step adds noise, and method {config.method!r} couples "
            "noise: a draft would have to hit every number; use method 'plain'"
        )


def _wide(prediction: HeadPrediction, steps: int) -> Tensor:
    """Noise `[R, steps, C]` in float32 at least, since half precision rounds steps away."""
    dtype = torch.promote_types(prediction.denoiser.head.weight.dtype, torch.float32)
    return prediction.noises(steps).to(dtype)
