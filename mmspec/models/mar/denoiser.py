"""Denoising steps of MAR's head as Gaussian laws, under guidance and temperature.

Li et al. 2024, section 3.2 and the authors' sampler: noise is guided, `ε = ε_u + s (ε_c - ε_u)`;
the variance is that of the conditional row; the temperature scales the deviation of every step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..linear import Affine
from ..rounded import affine
from .denoising_target import walk
from .diffusion_head import EPS, DiffusionHead
from .schedule import DiffusionSchedule


class PackedHead:
    """A head in its inference form: all modulations of a row are one product.

    Args:
        head: holds the weights.
        weights: how those of its blocks are rounded, see `rounded.linear`; None: as they are.

    Raises:
        InputError: they can't be rounded.
    """

    def __init__(self, head: DiffusionHead, weights: str | None = None) -> None:
        self.head, self.weight = head, head.input_proj.weight  # whose dtype and device it has
        blocks, last = head.blocks, head.final_layer
        self.modulation = affine(
            torch.cat([layer.weight for layer in head.modulations]),
            torch.cat([layer.bias for layer in head.modulations]),
            weights,
        )
        self.input = Affine(head.input_proj.weight, head.input_proj.bias)
        self.output = Affine(last.linear.weight, last.linear.bias)
        self.norms = [block.in_ln for block in blocks]
        self.mlps = [
            (affine(one.weight, one.bias, weights), affine(other.weight, other.bias, weights))
            for one, other in (block.linears for block in blocks)
        ]

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """Outputs `[N, G, 2C]` from noisy tokens `[N, C]` and embeddings `[N, G, W]`, for G rows.

        The G rows of a token share its noisy value.
        """
        count, groups, width = y.shape
        h = self.input(x)[:, None].expand(-1, groups, -1).reshape(-1, width)
        parts = self.modulation(F.silu(y).view(-1, width)).view(count * groups, -1, width)
        for i, (norm, (first, second)) in enumerate(zip(self.norms, self.mlps, strict=True)):
            shift, scale, gate = parts[:, 3 * i], parts[:, 3 * i + 1], parts[:, 3 * i + 2]
            inner = torch.addcmul(shift, norm(h), 1 + scale)
            h = torch.addcmul(h, gate, second(F.silu(first(inner))))
        shift, scale = parts[:, -2], parts[:, -1]
        h = torch.addcmul(shift, F.layer_norm(h, (width,), None, None, EPS), 1 + scale)
        return self.output(h).view(count, groups, -1)


class HeadDenoiser:
    """The denoising steps S of a head: step t leads from x_t to x_{t-1}, t = S - 1 … 0.

    Laws are in float32 at least, whatever the head's weights are in: half precision would round
    the schedule, and a hundred such steps end elsewhere.

    Args:
        head: in its inference form.
        schedule: of the S steps.
        temperature: factor on every step's deviation; the noise that it starts from is not scaled.
        learned_variance: whether the head says where a variance lies between its bounds; else it is
            the least.
    """

    def __init__(
        self,
        head: PackedHead,
        schedule: DiffusionSchedule,
        temperature: float = 1.0,
        learned_variance: bool = True,
    ) -> None:
        self.head, self.schedule, self.temperature = head, schedule, temperature
        self.learned_variance = learned_variance
        self.steps, self.channels = len(schedule), head.head.token_dim
        weight = head.weight
        self.times = head.head.time_embed(schedule.timesteps.to(weight.device))  # [S, W]
        fine = torch.promote_types(weight.dtype, torch.float32)
        self.shrink, self.share, low, high = (
            x.to(weight.device, fine)[:, None]
            for x in (schedule.shrink, schedule.share, schedule.low, schedule.high)
        )
        # half the logarithm: of the deviation. exp of -∞ is the 0 of the last step, without noise
        self.middle, self.reach = (low + high) / 4, (high - low) / 4
        self.middle[0] = -torch.inf

    def condition(self, z: Tensor, scale: float | Tensor | None = None) -> Tensor:
        """Condition of the head for R tokens, `[R, D]`, a row each.

        Args:
            z: conditions from the backbone `[R, G, E]`; G is 2 under guidance, the conditional row
                first.
            scale: guidance, one number or one per token `[R]`; None where G is 1.
        """
        embedded: Tensor = self.head.head.cond_embed(z).flatten(1)
        if scale is None:
            return embedded
        scales = torch.as_tensor(scale, dtype=self.shrink.dtype, device=z.device).expand(len(z))
        return torch.cat([embedded, scales[:, None]], dim=1)

    def step(self, x: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """The law of x_{t-1} given x_t: mean and deviation, both `[R, C]`.

        Any rows at any steps in one call: of one token too, with its condition repeated.

        Args:
            x: noisy tokens `[R, C]`, whose dtype may be finer than the head's.
            t: their steps `[R]`; at 0 the deviation is 0: the last step adds no noise.
            condition: `[R, D]`, see `condition`.
        """
        groups, guided = divmod(condition.shape[1], self.head.head.width)
        told = (condition[:, :-1] if guided else condition).to(self.times)
        y = told.unflatten(1, (groups, -1)) + self.times[t][:, None]  # [R, G, W]
        noise, between = self.head(x.to(y), y).to(self.shrink).split(self.channels, dim=-1)
        seen = torch.lerp(noise[:, 1], noise[:, 0], condition[:, -1:]) if guided else noise[:, 0]
        mean = (x - self.share[t] * seen) * self.shrink[t]
        share = between[:, 0] if self.learned_variance else torch.full_like(seen, -1)
        deviation = torch.exp(self.middle[t] + self.reach[t] * share) * self.temperature
        return mean, deviation.to(mean)

    def sample(self, condition: Tensor, noise: Tensor) -> Tensor:
        """Clean tokens `[R, C]`, step by step, from `noise [R, S, C]`.

        `noise[:, 0]` is where it starts; `noise[:, i]` is that of step S - i.
        """
        x = walk(self, noise.to(self.shrink), condition)
        return self.step(x, torch.zeros(len(x), dtype=torch.long, device=x.device), condition)[0]
