"""Drafts of denoising steps: cheaper laws of the next steps, followed one after the other."""

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
    """Draws the next denoising steps of every row along a `path`.

    Args:
        steps: T of a token.
    """

    def __init__(self, steps: int) -> None:
        self.steps = steps

    @abstractmethod
    def path(self, x: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Gaussian]:
        """Follow the steps `t [B, N]` from `x [B, C]` on, one after the other.

        Args:
            noise: of the steps, float64 `[B, N, C]`.

        Returns:
            Vectors `[B, N, C]` that they leave, and the laws, each behind the vector before it.
        """

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth = max(budget)
        lengths = torch.tensor(budget, device=context.lengths.device)
        x, size = context.last[:, 0], context.last.shape[-1]
        if not depth:
            none = context.tokens[:, :0]
            return Draft(none, lengths, Gaussian(none, none))
        t = steps_ahead(self.steps, context, depth)
        drafted, law = self.path(x, t, coins.normal((depth, size)))
        # a vector that is no numbers, or of no noise, is not drafted: the one in front is the last
        sound = law.drawable(drafted).cumprod(1).sum(1)
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

    def path(self, x: Tensor, t: Tensor, noise: Tensor) -> tuple[Tensor, Gaussian]:
        if not isinstance(self._told, Tensor):
            self._told = self._told()
        tokens, laws = [], []
        for step, added in zip(t.unbind(1), noise.to(x).unbind(1), strict=True):
            laws.append(self.denoiser.step(x, step, self._told))
            x = torch.addcmul(laws[-1][0], laws[-1][1], added)
            tokens.append(x)
        mean, std = (torch.stack(each, 1) for each in zip(*laws, strict=True))
        return torch.stack(tokens, 1), Gaussian(mean, std)
