"""Drafts of denoising steps: a cheaper law of the next step, followed step by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import Gaussian
from ...engine.protocols import Drafter
from ...models.mar.denoising_target import Denoiser, steps_ahead


class StepDrafter(Drafter):
    """Draws the next denoising steps of every row, each from `law` behind the one before it."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @abstractmethod
    def law(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and deviation `[B, C]` of what step `t [B]` leaves of `x [B, C]`."""

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth = max(budget)
        lengths = torch.tensor(budget, device=context.lengths.device)
        x, size = context.last[:, 0], context.last.shape[-1]
        if not depth:
            none = context.tokens[:, :0]
            return Draft(none, lengths, Gaussian(none, none))
        t, noise = steps_ahead(self.steps, context, depth), coins.normal((depth, size)).to(x)
        tokens, means, stds = [], [], []
        for n in range(depth):
            mean, std = self.law(x, t[:, n])
            x = mean + std * noise[:, n]
            tokens.append(x)
            means.append(mean)
            stds.append(std)
        drafted, law = torch.stack(tokens, 1), Gaussian(torch.stack(means, 1), torch.stack(stds, 1))
        # a vector that is no numbers, or of no noise, is not drafted: the one in front is the last
        sound = (drafted.isfinite() & law.noisy()).all(-1).cumprod(1).sum(1)
        return Draft(drafted, torch.minimum(lengths, sound), law)


class DenoisingDrafter(StepDrafter):
    """A smaller head drafts, one call of it a step.

    Args:
        denoiser: the smaller head, of as many steps as the target's.
        condition: what it is told of every token `[B, D]`, or who says so when first asked.
    """

    def __init__(self, denoiser: Denoiser, condition: Tensor | Callable[[], Tensor]) -> None:
        super().__init__(denoiser.steps)
        self.denoiser, self._told = denoiser, condition

    def law(self, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
        if not isinstance(self._told, Tensor):
            self._told = self._told()
        return self.denoiser.step(x, t, self._told)
