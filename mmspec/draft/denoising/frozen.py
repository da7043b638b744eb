"""The target's own last prediction drafts the next denoising steps (De Bortoli et al. 2025)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.accept.gaussian.base import law_at
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...models.mar.denoising_target import steps_ahead
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
        tables = self.schedule.alphas_bar, self.schedule.clean, self.schedule.current
        bounds = self.schedule.low, self.schedule.high
        self._tables = torch.stack((*tables, *bounds), -1).to(context.last.device)[..., None]
        self._velocity = self._share = torch.empty(0)  # [B, C]

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._root, self._t = context.last, steps_ahead(self.steps, context, 1)[:, 0]
        return super().propose(context, budget if context.round else [0] * len(budget), coins)

    def law(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        kept, clean, current, low, high = self._tables[t].unbind(1)
        predicted = kept.sqrt() * x - (1 - kept).sqrt() * self._velocity
        std = ((low + self._share * (high - low)) / 2).exp()
        return (clean * predicted + current * x).to(x), (self.temperature * std).to(x)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        law, x = law_at(scores.gaussian, verdict.accepted), torch.cat([self._root, draft.tokens], 1)
        x = pick(x, verdict.accepted)
        t = (self._t - verdict.accepted).clamp_min(0)
        kept, clean, current, low, high = self._tables[t].unbind(1)
        predicted = (law.mean - current * x) / clean
        self._velocity = (kept.sqrt() * x - predicted) / (1 - kept).sqrt()
        if self.learned_variance:
            self._share = (2 * (law.std / self.temperature).log() - low) / (high - low)
        else:
            self._share = torch.zeros_like(law.std)
