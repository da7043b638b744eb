"""Whole MAR iterations drafted with shared noises, up to the last noisy step (Wang et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import Gaussian
from ...engine.protocols import Drafter
from ...models.mar.denoising_target import CountedDenoiser, last_noisy_law
from ...models.mar.iterations import HeadPrediction, MarBackbone


class AlignedDrafter(Drafter):
    """A smaller MAR draws every token of a prediction, iteration by iteration.

    A row of the loop is a token. It stands at the last step that adds noise: the noises before it
    are those that the target has walked along, and the law there is what a token was drawn from.
    The smaller model finishes its own tokens to read them in the iterations that follow.

    For an exact rule it drafts one iteration at a time: the step behind the last noisy one adds no
    noise, so the two models finish one and the same vector differently, and an iteration drafted
    behind the drafter's has read another picture than the target's. Were the target to finish every
    drafted vector, several could be judged at once and taken back behind the first that falls; but
    at the last noisy step next to none stands (`cspd` in assets/reports/couplings).

    Args:
        small: the smaller model.
        prediction: of the target.
        noise: shared by both, `[R, T - 1, C]`.

    Attributes:
        backbone_calls, head_calls: of the smaller model, one after the other.
        head_rows: in the latter.
    """

    def __init__(self, small: MarBackbone, prediction: HeadPrediction, noise: Tensor) -> None:
        self.small, self.prediction, self.noise = small, prediction, noise
        self.backbone_calls = self.head_calls = self.head_rows = 0

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        lengths = torch.tensor(budget, device=context.lengths.device).clamp_max(1)
        if context.round:
            none = context.tokens[:, :0]
            return Draft(none, torch.zeros_like(lengths), Gaussian(none, none))
        own = coins.normal((self.noise.shape[-1],)).to(self.noise)
        x, mean, std = (each.flatten(0, 1)[:, None] for each in self._draw(own))
        law = Gaussian(mean, std)
        # what is no numbers, or of no noise, is not drafted
        sound = law.drawable(x)[:, 0]
        return Draft(x, lengths * sound, law)

    def _draw(self, own: Tensor) -> tuple[Tensor, ...]:
        """Tokens at the last noisy step, and their laws there, all `[B, m, C]`."""
        prediction, small = self.prediction, self.small
        positions, read, known = prediction.positions, prediction.read, prediction.known
        noise, own = (each.unflatten(0, positions.shape) for each in (self.noise, own))
        steps = small.plan.steps(prediction.iterations[0])
        head = CountedDenoiser(small.denoiser(steps))
        parts, done = [], 0
        for k in prediction.iterations:
            part = slice(done, done + small.plan.drawn(k))
            done, wanted = part.stop, positions[:, part]
            condition = small.told(range(k, k + 1), read, known, wanted, steps)
            law = last_noisy_law(head, noise[:, part].flatten(0, 1), condition)
            x = law[0] + law[1] * own[:, part].flatten(0, 1)
            parts.append(torch.stack([x, *law]).unflatten(1, wanted.shape))
            if k < prediction.iterations[-1]:
                last = torch.zeros(len(x), dtype=torch.long, device=x.device)
                clean = head.step(x, last, condition)[0].unflatten(0, wanted.shape)
                read, known = torch.cat([read, clean.to(read)], 1), torch.cat([known, wanted], 1)
        self.backbone_calls, self.head_calls, self.head_rows = len(parts), head.calls, head.rows
        return torch.cat(parts, dim=2).unbind(0)
