"""Jacobi drafting whose tokens stay put: successive laws are coupled (SCD, So et al. 2025)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...engine.accept.chain import pick, ratios
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical
from .jacobi import JacobiDrafter


class CoupledJacobiDrafter(JacobiDrafter):
    """A Jacobi window that redraws a token only as far as its law has moved.

    A token x drawn from q moves to the new law p by maximal coupling: it stays with probability
    min(1, p(x) / q(x)) and is otherwise drawn from [p − q]+. So it follows p exactly, and the
    context of the tokens behind it changes as rarely as it can.

    Arguments are those of `JacobiDrafter`.
    """

    _last: Draft | None = None

    def start(self, context: Context) -> None:
        super().start(context)
        self._last = None

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        if self._last is not None:
            lengths = self._last.lengths
            nothing = lengths.index_fill(0, torch.tensor(rows, device=lengths.device), 0)
            self._last = replace(self._last, lengths=nothing)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        self._last = draft

    def redraw(
        self, context: Context, laws: Tensor, index: Tensor | None, coins: RoundCoins
    ) -> Tensor:
        last = self._last
        if last is None or index is None or not last.nodes:
            return super().redraw(context, laws, index, coins)
        assert isinstance(last.law, Categorical)
        stood = index < last.lengths.unsqueeze(1)  # [B, W]: had a token in the last window
        index = index.clamp_max(last.nodes - 1)
        q, old = pick(last.law.probs, index), last.tokens.gather(1, index)
        stays = self.stays(laws, q, old, last.lengths - self._shift, coins) & stood
        return settled(laws, q, old, stays, coins, stood)

    def stays(
        self, laws: Tensor, q: Tensor, tokens: Tensor, lengths: Tensor, coins: RoundCoins
    ) -> Tensor:
        """Mark those of `tokens [B, W]` that stay as their laws move from `q` to `laws [B, W, V]`.

        Entries of row b from `lengths[b]` on do not matter.
        """
        return coins.accept(ratios(laws, q, tokens), lengths)


def settled(
    laws: Tensor,
    q: Tensor,
    tokens: Tensor,
    stays: Tensor,
    coins: RoundCoins,
    stood: Tensor | None = None,
) -> Tensor:
    """Tokens `[B, W]` that follow `laws [B, W, V]`, of such as followed `q`.

    Args:
        tokens: those that followed `q`.
        stays: which of them stay, see `CoupledJacobiDrafter.stays`.
        stood: places that had one; None: all.
    """
    residual = (laws - q).clamp_min_(0)
    # nothing is left over where p = q up to rounding: then p itself
    moved = residual.sum(-1) > 0
    moved = moved if stood is None else stood & moved
    drawn = coins.draw(torch.where(moved.unsqueeze(-1), residual, laws))
    return torch.where(stays, tokens, drawn)
