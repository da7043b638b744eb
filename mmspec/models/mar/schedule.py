"""Diffusion schedules: the noise of every timestep, and the law of a step back.

Ho et al. 2020 for the steps, Nichol and Dhariwal 2021 for the cosine schedule, the learned variance
(equation 15) and the respacing (section 4), with the constants of their code.
"""

from __future__ import annotations

import math
from itertools import accumulate, repeat
from typing import Literal

import torch
from torch import Tensor

from ...errors import InputError

NoiseSchedule = Literal["cosine", "linear"]
TRAINED = 1000  # timesteps


class DiffusionSchedule:
    """Timesteps S and what is known of each before any network is asked; tables in float64.

    Args:
        betas: variance of the noise that each step adds, `[S]`, from clean to noisy.
        timesteps: what the network is told at each of them, `[S]`; None: 0 … S - 1.

    Attributes:
        alphas_bar: share of the clean signal's variance that is left, `[S]`.
        shrink, share: a step back from x_t with predicted noise ε has the mean
            `(x_t - share · ε) · shrink`, `[S]`.
        clean, current: the same with a predicted clean end x_0: `clean · x_0 + current · x_t` (Ho
            et al. 2020, equation 7), `[S]`.
        low, high: logarithms of the least and the largest variance of a step back, `[S]`. The step
            to the clean end has none; its `low` is that of the step before, as in the published
            code.
    """

    def __init__(self, betas: Tensor, timesteps: Tensor | None = None) -> None:
        betas = betas.double()
        self.timesteps = torch.arange(len(betas)) if timesteps is None else timesteps
        self.alphas_bar = (1 - betas).cumprod(0)
        before = torch.cat([torch.ones(1, dtype=torch.float64), self.alphas_bar[:-1]])
        variance = betas * (1 - before) / (1 - self.alphas_bar)
        self.shrink = (1 - betas).rsqrt()
        self.share = betas * (1 - self.alphas_bar).rsqrt()
        self.clean = before.sqrt() * betas / (1 - self.alphas_bar)
        self.current = (1 - betas).sqrt() * (1 - before) / (1 - self.alphas_bar)
        self.low = torch.cat([variance[1:2], variance[1:]]).log()
        self.high = betas.log()

    def __len__(self) -> int:
        return len(self.timesteps)

    @classmethod
    def trained(cls, name: NoiseSchedule) -> DiffusionSchedule:
        """The schedule of 1,000 timesteps that networks are trained with."""
        if name == "linear":
            return cls(torch.linspace(1e-4, 0.02, TRAINED, dtype=torch.float64))
        angles = (torch.arange(TRAINED + 1).double() / TRAINED + 0.008) / 1.008 * math.pi / 2
        left = angles.cos().square()
        return cls((1 - left[1:] / left[:-1]).clamp_max(0.999))

    def respaced(self, steps: int) -> DiffusionSchedule:
        """`steps` of the timesteps, evenly spaced, the first and the last among them.

        Raises:
            InputError: fewer than 2 steps or more than there are.
        """
        if not 2 <= steps <= len(self):
            raise InputError(f"diffusion steps must be from 2 to {len(self)}, not {steps}")
        stride = (len(self) - 1) / (steps - 1)
        # summed up as in the published code: a product falls elsewhere where it ends in a half
        positions = accumulate(repeat(stride, steps - 1), initial=0.0)
        chosen = torch.tensor([round(place) for place in positions])
        kept = self.alphas_bar[chosen]
        before = torch.cat([torch.ones(1, dtype=torch.float64), kept[:-1]])
        return DiffusionSchedule(1 - kept / before, self.timesteps[chosen])

    def noised(self, clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Noisy tokens at step `t [N]`, of `clean [N, C]` and `noise [N, C]`."""
        kept = self.alphas_bar.to(clean.device)[t, None]
        return kept.sqrt().to(clean) * clean + (1 - kept).sqrt().to(clean) * noise

    def posterior_mean(self, clean: Tensor, noisy: Tensor, t: Tensor) -> Tensor:
        """Mean `[N, C]` of the step back from `noisy [N, C]` if the clean end were known."""
        share, current = (x.to(clean)[t, None] for x in (self.clean, self.current))
        return share * clean + current * noisy

    def mean(self, noisy: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        """Mean `[N, C]` of the step back from `noisy [N, C]` at step `t [N]`."""
        shrink, share = (x.to(noisy)[t, None] for x in (self.shrink, self.share))
        return (noisy - share * noise) * shrink

    def log_variance(self, between: Tensor, t: Tensor) -> Tensor:
        """Log variance of the step back at `t [N]`; `between [N, C]` is -1: least, to 1: most."""
        # they lie closer together than half precision tells apart
        between = between.to(torch.promote_types(between.dtype, torch.float32))
        low, apart = (x.to(between)[t, None] for x in (self.low, self.high - self.low))
        return low + (between + 1) / 2 * apart
