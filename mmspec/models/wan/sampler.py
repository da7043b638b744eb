"""Blocks of video from noise in a few steps: predict the clean block, add noise, again.

Huang et al. 2025, "Self Forcing", and Yin et al. 2025 (CausVid), after distribution matching
distillation: flow matching, x_t = (1 − σ) x_0 + σ noise, the network predicts v = noise − x_0. A
distilled model wants fresh noise at every step; one that only learned the flow follows it, with the
noise that it sees in its input (Euler's steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

from torch import Tensor

from ...errors import InputError
from .cache import WanCache
from .transformer import TIMESTEPS, WanTransformer

Draw = Callable[[int], Tensor]  # the fresh noise of a step
Part = TypeVar("Part", float, Tensor)


@dataclass(frozen=True)
class FewStepSampler:
    """The steps from noise to a clean block.

    Attributes:
        steps: timesteps of 1000 before they are warped, falling from 1000.
        shift: warps them, see `warp`; 1: not at all.
        guidance_scale: classifier-free guidance s; 1: none.
        renoise: part η of the added noise that is fresh; of the noise seen √(1 − η²) is kept.

    Raises:
        InputError: a value is out of range.
    """

    steps: tuple[float, ...] = (1000, 750, 500, 250)
    shift: float = 5.0
    guidance_scale: float = 1.0
    renoise: float = 1.0

    def __post_init__(self) -> None:
        falling = all(before > after for before, after in pairwise(self.steps))
        if not self.steps or self.steps[0] != TIMESTEPS or not falling or self.steps[-1] <= 0:
            raise InputError(f"steps must fall from 1000 and stay above 0, not {self.steps!r}")
        if not 0 < self.shift <= 100:
            raise InputError(f"shift must be above 0, at most 100, not {self.shift!r}")
        if not 0 <= self.guidance_scale <= 100:
            raise InputError(f"guidance_scale must be from 0 to 100, not {self.guidance_scale!r}")
        if not 0 <= self.renoise <= 1:
            raise InputError(f"renoise must be from 0 to 1, not {self.renoise!r}")

    @classmethod
    def even(
        cls, count: int, shift: float, guidance_scale: float = 1.0, renoise: float = 1.0
    ) -> FewStepSampler:
        """`count` steps, evenly from 1000."""
        told: object = count  # a config may hold anything
        if not isinstance(told, int) or told < 1:
            raise InputError(f"steps are counted: a whole number from 1, not {count!r}")
        steps = tuple(TIMESTEPS * (1 - n / count) for n in range(count))
        return cls(steps, shift, guidance_scale, renoise)

    @classmethod
    def usual(cls, model: WanTransformer) -> FewStepSampler:
        """The sampler that a model was made for."""
        config = model.config
        guidance = 1.0 if config.sample_guidance is None else config.sample_guidance
        return cls.even(config.sample_steps, config.sample_shift, guidance, config.sample_renoise)

    @property
    def guided(self) -> bool:
        """True if there are unconditional rows."""
        return self.guidance_scale != 1

    @property
    def sigmas(self) -> list[float]:
        """The part of noise before each step, from 1 down."""
        return [warp(step / TIMESTEPS, self.shift) for step in self.steps]


def warp(part: Part, shift: float) -> Part:
    """The part of noise σ that stands for `part` of all timesteps: more of them are noisy.

    σ = shift · s / (1 + (shift − 1) · s).
    """
    return shift * part / (1 + (shift - 1) * part)


def guided(velocity: Tensor, scale: float) -> Tensor:
    """Velocities `[B, …]` under classifier-free guidance, of those `[2 B, …]` that are told what to
    show and behind them those that are not.
    """
    told, untold = velocity.chunk(2)
    return untold + scale * (told - untold)


def denoise_block(
    model: WanTransformer,
    cache: WanCache,
    noise: Tensor,
    sampler: FewStepSampler,
    draw: Draw,
    clean: Tensor | None = None,
    before_step: Callable[[], None] = lambda: None,
) -> Tensor:
    """The clean latents `[B, F, C, H, W]` of the block that comes next; it is not committed.

    The same noise, initial and fresh, gives the same block: a rejected one is made again from it.

    Args:
        cache: of the clip so far, B rows; under guidance 2 B, the unconditional ones behind.
        noise: to begin with, `[B, F, C, H, W]`.
        draw: gives the fresh noise like `noise` before step 1, 2, …
        clean: frames of the blocks before it that are not committed yet, `[B, n · F, C, H, W]`: the
            first step does it along the way.
        before_step: what it raises breaks the block off.

    Raises:
        InputError: rows do not fit, or the cache has no room.
    """
    groups = 1 + sampler.guided
    if cache.rows != groups * len(noise):
        raise InputError(
            f"{len(noise)} blocks need a cache of {groups} rows each, not {cache.rows}"
        )

    def grouped(x: Tensor) -> Tensor:
        return x.repeat(groups, 1, 1, 1, 1)

    context = None if clean is None else grouped(clean)
    block, seen, fresh = noise, noise, sampler.renoise
    for step, sigma in enumerate(sampler.sigmas):
        x = noise
        if step:
            added = seen if not fresh else math.sqrt(1 - fresh**2) * seen + fresh * draw(step)
            x = (1 - sigma) * block + sigma * added
        before_step()
        velocity = model.denoise(grouped(x), TIMESTEPS * sigma, cache, context)
        if sampler.guided:
            velocity = guided(velocity, sampler.guidance_scale)
        block, seen, context = x - sigma * velocity, x + (1 - sigma) * velocity, None
    return block
