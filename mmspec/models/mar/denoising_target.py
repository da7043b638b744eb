"""Diffusion heads under speculation."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Gaussian


class Denoiser(Protocol):
    """A head that turns noise into a token, one normal law a step."""

    @property
    def steps(self) -> int:
        """T; step t runs from T − 1 down to 0, and step 0 adds no noise."""

    def step(self, x: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation `[R, C]` of the vectors that step `t` leaves of `x`.

        Any rows in any steps in one call: `x [R, C]`, `t [R]` in 0 … T − 1, `condition [R, D]`.
        Guidance and temperature are in it.
        """


def steps_ahead(steps: int, context: Context, nodes: int) -> Tensor:
    """The denoising step t of the next `nodes` positions of every row, `[B, nodes]`, 0 at least."""
    left = torch.arange(steps - 1, steps - 1 - nodes, -1, device=context.lengths.device)
    return (left - context.lengths[:, None]).clamp_min(0)


class DenoisingTarget:
    """Scores several denoising steps of every token in one call of the head; it keeps no cache.

    A row of the loop is a token, position n of its output is x after step T − 1 − n, and what
    stands in front of the first is the noise x_T (`loop.run`, `first`). Run to the limit T: the
    last position, which has no noise, is never drafted, since a draft leaves room for the target's
    own.

    Args:
        denoiser: the head.
        condition: what it is told of every token `[B, D]`.
        left: the chain's last steps that are to be gone, T in all that is said above; None: all T.
    """

    def __init__(self, denoiser: Denoiser, condition: Tensor, left: int | None = None) -> None:
        self.denoiser, self.condition = denoiser, condition
        self.left = denoiser.steps if left is None else left

    def start(self, rows: int) -> None:
        """Do nothing: no call needs preparation."""

    def score(self, context: Context, draft: Draft) -> Scores:
        x = torch.cat([context.last, draft.tokens], dim=1) if draft.nodes else context.last
        t = steps_ahead(self.left, context, draft.nodes + 1)
        # finished rows are not asked for, and neither is filling
        asked = torch.arange(draft.nodes + 1, device=x.device) <= draft.lengths[:, None]
        if any(context.finished):
            asked &= ~torch.tensor(context.finished, device=x.device)[:, None]
        if asked.all():
            told = self.condition.repeat_interleave(draft.nodes + 1, 0)
            mean, std = self.denoiser.step(x.flatten(0, 1), t.flatten(), told)
            return Scores(Gaussian(mean.view_as(x), std.view_as(x)))
        row, node = asked.nonzero(as_tuple=True)
        mean, std = torch.zeros_like(x), torch.zeros_like(x)
        laws = self.denoiser.step(x[row, node], t[row, node], self.condition[row])
        mean[row, node], std[row, node] = laws
        return Scores(Gaussian(mean, std))

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Draw nothing: the rule has drawn what fell."""
        return verdict

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Do nothing: there is no cache."""


class CountedDenoiser:
    """A denoiser that counts its calls.

    Attributes:
        calls, rows: of it, one after the other, and the rows in them.
    """

    def __init__(self, denoiser: Denoiser) -> None:
        self.denoiser = denoiser
        self.steps = denoiser.steps
        self.calls = self.rows = 0

    def step(self, x: Tensor, t: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        self.rows += len(x)
        return self.denoiser.step(x, t, condition)


def walk(denoiser: Denoiser, noise: Tensor, condition: Tensor) -> Tensor:
    """The vectors `[R, C]` that the first steps leave, whose noises are given.

    Args:
        noise: `[R, n, C]`: x_T, and what the first n − 1 steps add.
        condition: `[R, D]`.
    """
    x, *others = noise.unbind(1)
    t = torch.full((len(x),), denoiser.steps - 1, device=x.device)
    for added in others:
        mean, std = denoiser.step(x, t, condition)
        x, t = mean + std * added, t - 1
    return x


def last_noisy_law(denoiser: Denoiser, noise: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation `[R, C]` of the last step that adds noise, behind given noises.

    Args:
        noise: `[R, T − 1, C]`: x_T, and what the steps T − 1 … 2 add.
        condition: `[R, D]`.
    """
    x = walk(denoiser, noise, condition)
    return denoiser.step(x, torch.ones(len(x), dtype=torch.long, device=x.device), condition)
