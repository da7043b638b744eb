"""Loss of a diffusion head: noisy tokens, and the distance of its Gaussians from the truth.

Li et al. 2024, section 3.2; Nichol and Dhariwal 2021, section 3.1 (hybrid loss).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.mar.schedule import DiffusionSchedule


@dataclass
class NoisyTokens:
    """Tokens at random steps.

    Attributes:
        schedule: whose steps they are.
        clean, noise, noisy: `[N, C]`.
        t: their steps `[N]`.
    """

    schedule: DiffusionSchedule
    clean: Tensor
    noise: Tensor
    noisy: Tensor
    t: Tensor

    @classmethod
    def draw(
        cls, schedule: DiffusionSchedule, clean: Tensor, rng: np.random.Generator, first: int = 0
    ) -> NoisyTokens:
        """Noise to `clean [N, C]` at steps from `first` on, drawn evenly."""
        t = torch.from_numpy(rng.integers(first, len(schedule), len(clean))).to(clean.device)
        noise = torch.from_numpy(rng.standard_normal(tuple(clean.shape))).to(clean)
        return cls(schedule, clean, noise, schedule.noised(clean, noise, t), t)

    @property
    def timesteps(self) -> Tensor:
        """The timesteps that a head is given, `[N]`."""
        return self.schedule.timesteps.to(self.t.device)[self.t]


def hybrid_loss(noisy: NoisyTokens, noise: Tensor, between: Tensor) -> tuple[Tensor, Tensor]:
    """Squared error of a head's noise `[N, C]`, and the divergence in bits that its variance has.

    `between [N, C]` says where the variance lies. The divergence is that of the step back from the
    true posterior, of one number, and moves the variance alone. At the last step, which adds no
    noise in use, the published loss has the likelihood of pixels' 256 levels; tokens have none, and
    the divergence there is as everywhere.
    """
    schedule, t = noisy.schedule, noisy.t
    truth = schedule.posterior_mean(noisy.clean, noisy.noisy, t)
    guess = schedule.mean(noisy.noisy, noise.detach(), t)
    least = schedule.log_variance(torch.full_like(between, -1), t)
    nats = divergence(truth, least, guess, schedule.log_variance(between, t))
    return F.mse_loss(noise, noisy.noise), nats.mean() / np.log(2)


def divergence(mean: Tensor, log_variance: Tensor, other: Tensor, other_log: Tensor) -> Tensor:
    """Kullback–Leibler divergence in nats of normal laws from others, number by number."""
    ratio = (log_variance - other_log).exp()
    return 0.5 * (ratio - 1 - (log_variance - other_log) + (mean - other) ** 2 / other_log.exp())
