"""The target's own last prediction drafts the next denoising steps (De Bortoli et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.gaussian.base import parts_at
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Gaussian
from ...models.mar.schedule import DiffusionSchedule
from .small_head import StepDrafter


class FrozenDrafter(StepDrafter):
    """Repeats the head's last prediction while the schedule goes on: no training, no calls.

    The prediction is read off the law of the last step that stood or was drawn anew, as a velocity
    v = √ᾱ ε − √(1 − ᾱ) x_0 (Salimans and Ho 2022): x̂_0 = √ᾱ x − √(1 − ᾱ) v does not move where x
    is noise, moves with x where there is hardly any, and is exact if the data is N(0, I). The
    variance stays as far between its bounds as it was. A first round, without a prediction yet,
    drafts nothing.

    Args:
        schedule: how predictions make laws.
        temperature: of the head, by which its deviations are multiplied.
        learned_variance: whether the head says where its variances lie; else they are the least.
    """

    def __init__(
        self, schedule: DiffusionSchedule, temperature: float = 1.0, learned_variance: bool = True
    ) -> None:
        super().__init__(len(schedule))
        self.schedule, self.temperature = schedule, temperature
        self.learned_variance = learned_variance

    def start(self, context: Context) -> None:
        kept = self.schedule.alphas_bar
        lost = (1 - kept).sqrt()
        # means are gain · x + pull · v, logarithms of deviations lie from `least` on, `reach` apart
        gain = self.schedule.clean * kept.sqrt() + self.schedule.current
        pull = -self.schedule.clean * lost
        least = ((self.schedule.low / 2).exp() * self.temperature).log()
        reach = (self.schedule.high - self.schedule.low) / 2
        tables = torch.stack((gain, pull, least, reach), -1)
        self._tables = tables.to(context.last.device)[..., None]  # [T, 4, 1]
        self._velocity = self._share = torch.empty(0)  # [B, C]

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._root, self._left = context.last, self.steps - 1 - context.lengths
        return super().propose(context, budget if context.round else [0] * len(budget), coins)

    def path(self, x: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Gaussian]:
        gain, pull, least, reach = self._tables[t].unbind(2)  # [B, N, 1]
        std = torch.addcmul(least, reach, self._share[:, None]).exp()
        drift = pull * self._velocity[:, None]
        before = [x.double()]
        parts = gain.unbind(1), torch.addcmul(drift, std, noise).unbind(1)
        for factor, added in zip(*parts, strict=True):
            before.append(torch.addcmul(added, factor, before[-1]))
        path = torch.stack(before, 1)
        mean = torch.addcmul(drift, gain, path[:, :-1])
        return path[:, 1:].to(x), Gaussian(mean, std)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        law = scores.gaussian
        x = torch.cat([self._root, draft.tokens], 1)
        mean, std, x = parts_at((law.mean, law.std, x), verdict.accepted)
        t = (self._left - verdict.accepted).clamp_min(0)
        gain, pull, least, reach = self._tables[t].unbind(1)
        self._velocity = torch.addcmul(mean, gain, x, value=-1) / pull
        if self.learned_variance:
            self._share = (std.log() - least) / reach
        else:
            self._share = torch.zeros_like(std)
