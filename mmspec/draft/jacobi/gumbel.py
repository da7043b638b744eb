"""Jacobi drafting whose tokens stay put: one noise per place (SCD's other coupling).

So et al. 2025; the noise as in Maddison et al. 2014 (Gumbel-max), written with exponentials.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context
from .jacobi import JacobiDrafter


class GumbelJacobiDrafter(JacobiDrafter):
    """A Jacobi window in which a place is drawn with the same noise in every round.

    The token is argmin E(x) / q(x) with E standard exponential, so it follows q whatever q is; as
    long as E stays, a law that moves little mostly gives the same token. The noise of a place is
    never used to judge it, and laws depend on earlier places alone: the draft still is a draw from
    q when it is judged.

    Arguments are those of `JacobiDrafter`.
    """

    _noise: Tensor | None = None  # [B, W, V], of the places from `_first` on
    _first: Tensor  # [B]
    _ends: list[int]  # per row, the first place behind those

    def start(self, context: Context) -> None:
        super().start(context)
        self._noise = None

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        self._noise = None  # what the other rows had of it is made again

    def redraw(
        self, context: Context, laws: Tensor, index: Tensor | None, coins: RoundCoins
    ) -> Tensor:
        width = laws.shape[1]
        ends = [base + width for base in context.base]
        positions = torch.arange(width, device=laws.device) + context.lengths.unsqueeze(1)
        fresh = width  # columns that are new to some row
        if self._noise is not None:
            fresh = max(0, *(e - last for e, last in zip(ends, self._ends, strict=True)))
        if self._noise is None or fresh >= width:
            noise = coins.exponential(positions, self.vocab_size)
        else:
            column = positions - self._first.unsqueeze(1)
            known = self._noise.shape[1]
            noise = pick(self._noise, column.clamp_max(known - 1))
            if fresh:
                new = coins.exponential(positions[:, -fresh:], self.vocab_size)
                # a row that came less far than others has met some of these places
                met = (column[:, -fresh:] < known).unsqueeze(-1)
                new = torch.where(met, noise[:, -fresh:], new)
                noise = torch.cat([noise[:, :-fresh], new], dim=1)
        self._noise, self._first, self._ends = noise, context.lengths, ends
        return (noise / laws).argmin(-1)
