"""A denoising chain whose law is known in closed form: what couplings are proved on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...models.mar.schedule import DiffusionSchedule

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
        """See `Denoiser.step`; `condition [R, C]` is μ."""
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
