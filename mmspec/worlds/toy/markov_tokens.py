"""Pictures of continuous tokens whose law is known: a Markov chain, each token denoised."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from ...engine.coins import ProductionCoins
from ...models.mar.denoising_target import walk
from ...models.mar.iterations import HeadPrediction, MarPlan
from .linear_gaussian import LinearGaussian


@dataclass(frozen=True)
class MarkovHead(LinearGaussian):
    """The best denoiser of a token, with what is asked of a `HeadDenoiser`."""

    @property
    def channels(self) -> int:
        """Of a token, C."""
        return self.gain.shape[1]

    @property
    def head(self) -> Any:
        """Whose weights tell the dtype."""
        return SimpleNamespace(weight=self.gain)

    def sample(self, condition: Tensor, noise: Tensor) -> Tensor:
        """See `HeadDenoiser.sample`."""
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
        """See `MarBackbone.denoiser`; there is one number of steps."""
        return self.target

    def told(
        self, iterations: range, read: Tensor, known: Tensor, wanted: Tensor, steps: int
    ) -> Tensor:
        """See `MarBackbone.told`."""
        x = read[:, -1] if read.shape[1] else read.new_zeros(len(read), self.target.channels)
        conditions = []
        for _ in range(wanted.shape[1]):
            conditions.append(self.offset + self.slope * x)
            x = self.target.reach * conditions[-1]
        return torch.stack(conditions, 1).flatten(0, 1)

    def predictions(self, tokens: Tensor, spans: Iterable[int]) -> Iterator[HeadPrediction]:
        """See `MarBackbone.predictions`."""
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
