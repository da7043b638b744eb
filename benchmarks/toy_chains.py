"""Denoising chains and pictures of tokens whose laws are known: what couplings are proved on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mmspec.engine.coins import ProductionCoins
from mmspec.models.mar.denoising_target import walk
from mmspec.models.mar.iterations import HeadPrediction, MarPlan
from mmspec.models.mar.schedule import DiffusionSchedule

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class LinearGaussian:
    """x_{t−1} = gain_t x_t + pull_t μ + std_t ε, coordinate by coordinate, with condition μ.

    It is a `Denoiser`.

    Attributes:
        gain, pull, std: `[T, C]`.
    """

    gain: Tensor
    pull: Tensor
    std: Tensor

    @classmethod
    def of_data(
        cls, spread: Tensor, schedule: DiffusionSchedule, share: float | Tensor = 0.0
    ) -> Self:
        """The best denoiser of data N(μ, diag spread²), `spread [C]`.

        Args:
            share: how far up the variance lies between the schedule's bounds, in [0, 1]; a number
                or one a coordinate `[C]`.
        """
        names = ("alphas_bar", "clean", "current", "low", "high")
        tables = (getattr(schedule, name).to(spread)[:, None] for name in names)
        kept, clean, current, low, high = tables
        # x_0 given x_t has the mean μ + slope (x_t − √ᾱ μ)
        slope = kept.sqrt() * spread**2 / (kept * spread**2 + 1 - kept)
        std = ((low + share * (high - low)) / 2).exp().expand_as(slope).clone()
        std[0] = 0.0
        return cls(clean * slope + current, clean * (1 - kept.sqrt() * slope), std)

    @property
    def steps(self) -> int:
        """T."""
        return len(self.gain)

    def step(self, x: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation of a `Denoiser`'s step; `condition [R, C]` is μ."""
        return self.gain[t] * x + self.pull[t] * condition, self.std[t]

    def mean_path(self, x: Tensor, condition: Tensor, done: int = 0) -> Tensor:
        """Means of what the steps behind the first `done` leave of `x [..., C]`, `[..., K, C]`."""
        path = []
        for t in range(self.steps - 1 - done, -1, -1):
            x = self.gain[t] * x + self.pull[t] * condition
            path.append(x)
        return torch.stack(path, -2)

    def covariance(self, done: int = 0) -> Tensor:
        """Covariances of what those steps leave, `[K, K, C]`."""
        left = self.steps - done
        gain, std = self.gain[:left].flip(0), self.std[:left].flip(0)
        out = gain.new_zeros(left, left, gain.shape[-1])
        for i in range(left):
            if i:
                out[i, :i] = gain[i] * out[i - 1, :i]
                out[:i, i] = out[i, :i]
            out[i, i] = std[i].square() + (gain[i].square() * out[i - 1, i - 1] if i else 0)
        return out


@dataclass(frozen=True)
class MarkovHead(LinearGaussian):
    """The best denoiser of a token, with what is asked of a `HeadDenoiser`."""

    @property
    def channels(self) -> int:
        """Channels C of a token."""
        return self.gain.shape[1]

    @property
    def head(self) -> Any:
        """Stand-in for the network, whose weights tell the dtype."""
        return SimpleNamespace(weight=self.gain)

    def sample(self, condition: Tensor, noise: Tensor) -> Tensor:
        x = walk(self, noise, condition)
        return self.step(x, torch.zeros(len(x), dtype=torch.long), condition)[0]

    @cached_property
    def reach(self) -> Tensor:
        """A token's mean over its condition `[C]`."""
        return self.mean_path(torch.zeros_like(self.gain[0]), torch.ones_like(self.gain[0]))[-1]

    @cached_property
    def variance(self) -> Tensor:
        """A token's, given its condition `[C]`."""
        start = self.mean_path(torch.ones_like(self.gain[0]), torch.zeros_like(self.gain[0]))[-1]
        return self.covariance()[-1, -1] + start.square()  # of the noise x_T too


@dataclass
class MarkovTokens:
    """Draws tokens in the order of their places; it has a `MarBackbone`'s part in speculation.

    A token is denoised behind the condition `offset + slope` times the token before it, the first
    behind `offset`. Of tokens that are asked for together the condition is the mean of what it is
    given those that are known.

    Args:
        target: the head.
        plan: of one token an iteration.
        seeds: of the pictures.
    """

    target: MarkovHead
    plan: MarPlan
    seeds: Sequence[int]
    offset: float
    slope: float

    def denoiser(self, steps: int) -> Any:
        """The head, whatever the number of steps."""
        return self.target

    def told(
        self, iterations: range, read: Tensor, known: Tensor, wanted: Tensor, steps: int
    ) -> Tensor:
        x = read[:, -1] if read.shape[1] else read.new_zeros(len(read), self.target.channels)
        conditions = []
        for _ in range(wanted.shape[1]):
            conditions.append(self.offset + self.slope * x)
            x = self.target.reach * conditions[-1]
        return torch.stack(conditions, 1).flatten(0, 1)

    def predictions(self, tokens: Tensor, spans: Iterable[int]) -> Iterator[HeadPrediction]:
        positions = torch.arange(self.plan.length).expand(len(tokens), -1)
        coins, start, steps = ProductionCoins(list(self.seeds)), 0, self.target.steps
        for span in spans:
            iterations, start = range(start, start + span), start + span
            known, wanted = positions[:, : iterations.start], positions[:, iterations.start : start]
            read = tokens[:, : iterations.start]
            condition = self.told(iterations, read, known, wanted, steps)
            rows = torch.arange(len(tokens)).repeat_interleave(span)
            own = coins.at(rows, wanted.flatten())
            head: Any = self.target
            yield HeadPrediction(iterations, wanted, known, read, condition, head, own)

    def law(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, deviation and correlation with the one before `[C]` of a token, the first being 1.

        In closed form, where each is drawn behind the one before it.
        """
        reach = self.target.reach
        mean = variance = before = torch.zeros_like(reach)
        for _ in range(number):
            mean, before = reach * (self.offset + self.slope * mean), variance
            variance = self.target.variance + (reach * self.slope).square() * before
        return mean, variance.sqrt(), reach * self.slope * (before / variance).sqrt()
