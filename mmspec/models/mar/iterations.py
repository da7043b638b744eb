"""MAR's generation, iteration by iteration: which tokens are drawn, and what the head is told.

Li et al. 2024, section 3.4 and the authors' sampler: a random order per picture, a cosine schedule
of how many tokens are still masked, guidance that grows with the part that is known.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from ...engine.coins import ProductionCoins
from ...errors import InputError
from ...registry import check_name
from .denoiser import HeadDenoiser, PackedHead
from .schedule import TRAINED
from .transformer import MarTransformer

GuidanceSchedule = Literal["linear", "constant"]
GUIDANCE_SCHEDULES: tuple[GuidanceSchedule, ...] = ("linear", "constant")


@dataclass(frozen=True)
class MarPlan:
    """Settings of the generation of pictures of L tokens.

    Attributes:
        length: tokens L of a picture.
        iterations: calls of the backbone, at most L: tokens of one iteration know nothing of each
            other.
        guidance_scale: classifier-free guidance s; 1: none.
        guidance_schedule: "linear" starts at no guidance and ends at s, "constant" stays at s.
        temperature: of the head.
        diffusion_steps: of the head; a pair: of the first iteration and of the last, see `steps`.
        learned_variance: whether the head says how much noise a step has; else it is the least.

    Raises:
        InputError: a value is out of range.
    """

    length: int
    iterations: int
    guidance_scale: float = 1.0
    guidance_schedule: GuidanceSchedule = "linear"
    temperature: float = 1.0
    diffusion_steps: int | tuple[int, int] = 100
    learned_variance: bool = True

    def __post_init__(self) -> None:
        if not _whole(self.iterations) or not 1 <= self.iterations <= self.length:
            raise InputError(f"iterations must be from 1 to {self.length}, not {self.iterations!r}")
        check_name("guidance schedule", self.guidance_schedule, GUIDANCE_SCHEDULES)
        given: Any = self.diffusion_steps
        if not _whole(given) and not (isinstance(given, tuple | list) and len(given) == 2):
            raise InputError(f"diffusion_steps must be a number or two, not {given!r}")
        for steps in (given,) if _whole(given) else given:
            if not _whole(steps) or not 2 <= steps <= TRAINED:
                raise InputError(f"diffusion_steps must be from 2 to {TRAINED}, not {steps!r}")
        if not isinstance(self.learned_variance, bool):
            raise InputError(f"learned_variance is True or False, not {self.learned_variance!r}")
        for name in ("guidance_scale", "temperature"):
            value: Any = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 100:
                raise InputError(f"{name} must be from 0 to 100, not {value!r}")

    @property
    def guided(self) -> bool:
        """True if there are unconditional rows."""
        return self.guidance_scale != 1

    @cached_property
    def masked(self) -> list[int]:
        """Tokens that are masked before each iteration, and after the last: from L to 0.

        After iteration k of K they are `⌊L cos(π/2 · k/K)⌋`, but every iteration draws a token.
        """
        counts = [self.length]
        for k in range(1, self.iterations):
            left = math.floor(self.length * math.cos(math.pi / 2 * k / self.iterations))
            counts.append(max(1, min(counts[-1] - 1, left)))
        return [*counts, 0]

    def drawn(self, iteration: int) -> int:
        """Tokens that an iteration draws."""
        return self.masked[iteration] - self.masked[iteration + 1]

    def guidance(self, masked: int) -> float:
        """Guidance of an iteration that leaves so many tokens masked (the last counts as one)."""
        if self.guidance_schedule == "constant":
            return self.guidance_scale
        known = (self.length - max(1, masked)) / self.length
        return 1 + (self.guidance_scale - 1) * known

    def steps(self, iteration: int) -> int:
        """Diffusion steps of an iteration; of a pair (first, last), linear between the two.

        Zhao et al. 2025, "DiSA: Diffusion Step Annealing", its linear schedule.
        """
        if isinstance(self.diffusion_steps, int):
            return self.diffusion_steps
        first, last = self.diffusion_steps
        end = self.iterations - 1
        return first if not end else last + int((end - iteration) / end * (first - last))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass
class HeadPrediction:
    """Tokens that are drawn together, as rows of their own: R = B · m.

    Attributes:
        iterations: those whose tokens they are.
        positions: where they stand, `[B, m]`.
        known: where those stand that were drawn before them, `[B, n]`.
        read: these, `[B, n, C]`.
        condition: what the head is told of each, `[R, D]`.
        denoiser: the head with these iterations' steps.
        coins: of each.
    """

    iterations: range
    positions: Tensor
    known: Tensor
    read: Tensor
    condition: Tensor
    denoiser: HeadDenoiser
    coins: ProductionCoins

    @property
    def asked(self) -> tuple[range, Tensor, Tensor, Tensor]:
        """Arguments of `MarBackbone.told`, for any model of the same tokens."""
        return self.iterations, self.read, self.known, self.positions

    def noises(self, steps: int) -> Tensor:
        """Noise `[R, steps, C]` of the first steps; see `HeadDenoiser.sample`.

        Whoever denoises these tokens has the same.
        """
        place = torch.zeros_like(self.positions.flatten())[:, None]
        noise = self.coins.round(0)[0].noise(place, steps * self.denoiser.channels)
        return noise.view(len(place), steps, -1)


def plainly(prediction: HeadPrediction) -> Tensor:
    """Tokens `[R, C]` of an iteration: all diffusion steps one after the other."""
    denoiser = prediction.denoiser
    return denoiser.sample(prediction.condition, prediction.noises(denoiser.steps))


@dataclass
class MarBackbone:
    """MAR at work on B pictures.

    Args:
        model: the network.
        head: its head in inference form.
        buffer: what to draw, `[R, T, D]`: B rows, and under guidance the B unconditional ones.
        plan: how.
        seeds: of the pictures.
    """

    model: MarTransformer
    head: PackedHead
    buffer: Tensor
    plan: MarPlan
    seeds: list[int]
    _denoisers: dict[int, HeadDenoiser] = field(default_factory=dict)

    def conditions(self, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
        """Conditions `[B, m, G, E]` at the places `wanted [B, m]`; G is 2 under guidance.

        One call of the network; arguments as of `MarTransformer.forward`.
        """
        groups = 1 + self.plan.guided
        known, at, asked = (
            x.repeat(groups, *[1] * (x.ndim - 1)) for x in (tokens, positions, wanted)
        )
        return torch.stack(self.model(known, at, self.buffer, asked).chunk(groups), dim=2)

    def denoiser(self, steps: int) -> HeadDenoiser:
        """The head with so many diffusion steps."""
        if steps not in self._denoisers:
            schedule, plan = self.model.schedule.respaced(steps), self.plan
            self._denoisers[steps] = HeadDenoiser(
                self.head, schedule, plan.temperature, plan.learned_variance
            )
        return self._denoisers[steps]

    def told(
        self, iterations: range, read: Tensor, known: Tensor, wanted: Tensor, steps: int
    ) -> Tensor:
        """Condition of the head `[R, D]` for the tokens `wanted [B, m]` that iterations draw.

        One call of the network, which reads the tokens `read [B, n, C]` at `known [B, n]`; the head
        has so many steps.
        """
        z = self.conditions(read, known, wanted).flatten(0, 1)
        scale = None
        if self.plan.guided:
            plan, each = self.plan, []
            for k in iterations:
                each += [plan.guidance(plan.masked[k + 1])] * plan.drawn(k)
            scale = torch.tensor(each * len(wanted), dtype=torch.float64, device=z.device)
        return self.denoiser(steps).condition(z, scale)

    def predictions(
        self, tokens: Tensor, spans: Iterable[int] | None = None
    ) -> Iterator[HeadPrediction]:
        """Yield what is to be drawn, in turn; the caller puts the draws into `tokens [B, L, C]`.

        A prediction reads those of the ones before it, when it is asked for.

        Args:
            spans: iterations whose tokens are drawn together, from one set of known ones, in each
                of the predictions, which asks for its own when its turn comes; None: one.
        """
        plan, masked = self.plan, self.plan.masked
        coins = ProductionCoins(self.seeds, tokens.device)
        every = torch.arange(plan.length, device=tokens.device)[None]
        order = coins.exponential(every, 1)[..., 0].argsort(-1)
        start = 0
        for span in spans or [1] * plan.iterations:
            iterations = range(start, start + span)
            start += span
            done, until = plan.length - masked[iterations[0]], plan.length - masked[start]
            known, wanted = order[:, :done], order[:, done:until]
            read = tokens.gather(1, known[..., None].expand(-1, -1, tokens.shape[-1]))
            steps = plan.steps(iterations[0])
            condition = self.told(iterations, read, known, wanted, steps)
            pictures = torch.arange(len(tokens), device=tokens.device)
            own = coins.at(pictures.repeat_interleave(until - done), wanted.flatten())
            yield HeadPrediction(
                iterations, wanted, known, read, condition, self.denoiser(steps), own
            )
