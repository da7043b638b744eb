"""Coins of one round that several drafters, or several rounds of one, share without ever sharing a
number."""

from __future__ import annotations

import torch
from torch import Tensor

from ..engine.coins import RoundCoins


class OffsetCoins:
    """Coins whose draws are numbered on from `first`: two drafters never share one."""

    def __init__(self, coins: RoundCoins, first: int) -> None:
        self._coins, self._first = coins, first

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        return self._coins.accept(prob, lengths)

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        return self._coins.draw(weights, index + self._first)

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        return self._coins.normal(shape, index + self._first)

    def noise(self, positions: Tensor, count: int) -> Tensor:
        return self._coins.noise(positions, count)

    def exponential(self, positions: Tensor, count: int) -> Tensor:
        return self._coins.exponential(positions, count)


class InnerCoins(OffsetCoins):
    """Coins of a round within a round: its verdicts, too, are made of draws.

    Args:
        coins: of the round around it.
        number: which of the sides of the rounds in it: 0 and 1 are the first one's proposals and
            verification.
    """

    _draws, _verdicts = 4096, 1024  # more than a side draws, and where its verdicts begin

    def __init__(self, coins: RoundCoins, number: int) -> None:
        super().__init__(coins, number * self._draws)

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        stands = prob.nan_to_num(0.0).clamp(0.0, 1.0)
        return self.draw(torch.stack([1 - stands, stands], -1), self._verdicts).bool()

    def draw(self, weights: Tensor, index: int | Tensor = 0) -> Tensor:
        # one by one: of all numbers up to these most would be made for nothing
        if isinstance(index, int):
            count = weights.shape[1] if weights.ndim == 3 else 1
            index = torch.arange(index, index + count, device=weights.device)
            index = index.expand(len(weights), -1)
        return super().draw(weights, index)
