"""Steps of text that rows are in the middle of, each as far as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context
from .token_model import TokenModel, laws_at

StepsEnd = Callable[[Tensor], Tensor]
"""Tells of steps so far `[B, n]` in which rows `[B]` the last token ends one."""


class UnfinishedSteps:
    """Steps of every row behind its committed tokens, which grow by a token a call.

    A call goes on with the rows that it is told. The others run along, and of what they are given
    nothing is kept: what a row has read, and when, is its own affair.

    Args:
        model: writes them.
        ends: tells where they end.
        rows: B.

    Attributes:
        counts: tokens of each row's step so far.
        over: whether it is at its end.
        known: positions before this one are in the model's cache, by row.
        tokens: `[B, K]`; row b has `counts[b]`, and filling behind them.
    """

    def __init__(self, model: TokenModel, ends: StepsEnd, rows: int) -> None:
        self.model, self.ends = model, ends
        self.counts, self.over, self.known = [0] * rows, [False] * rows, [-1] * rows
        self.tokens = torch.zeros(rows, 0, dtype=torch.long)

    def drop(self, row: int, known: int) -> None:
        """Begin a row anew, of which the cache holds the positions before `known` at most."""
        self.counts[row], self.over[row] = 0, False
        self.known[row] = min(self.known[row], known)

    def laws(self, context: Context, going: Sequence[int]) -> tuple[Tensor, list[int]]:
        """Laws `[B, V]` behind the steps of rows that go on, and tokens that each read for them."""
        base, rows = context.base, range(context.rows)
        ends = [max(0, known) for known in self.known]
        for row in going:
            ends[row] = base[row] + self.counts[row]
        laws = laws_at(self.model, self._text(context), ends, self.known)
        read = [ends[row] - self.known[row] if row in going else 0 for row in rows]
        self.known = [ends[row] if row in going else self.known[row] for row in rows]
        return laws, read

    def draw(
        self, laws: Tensor, going: Sequence[int], most: Sequence[int], coins: RoundCoins
    ) -> None:
        """Draw a token more of the rows that go on; a step has `most[b]` tokens at most."""
        places = torch.tensor(self.counts, device=laws.device)
        drawn = coins.draw(laws, places[:, None])
        self.tokens = _wide(self.tokens.to(drawn.device), 1 + max(self.counts))
        chosen = torch.tensor(going, device=laws.device)
        self.tokens[chosen, places[chosen]] = drawn[chosen]
        for row in going:
            self.counts[row] += 1
        for count in {self.counts[row] for row in going}:
            alike = [row for row in going if self.counts[row] == count]
            ended = self.ends(self.tokens[alike, :count]).tolist()
            for row, over in zip(alike, ended, strict=True):
                self.over[row] = over or count >= most[row]

    def _text(self, context: Context) -> Tensor:
        """The committed tokens and the steps behind them `[B, T]`."""
        width = self.tokens.shape[1]
        text = _wide(context.tokens, max(context.base) + width)
        if not width:
            return text
        places = context.lengths[:, None] + torch.arange(width, device=text.device)
        return text.scatter(1, places, self.tokens)


def _wide(x: Tensor, width: int) -> Tensor:
    """Rows of `[B, n]` filled up to `[B, width]`, if they are shorter."""
    return F.pad(x, (0, max(0, width - x.shape[1])))
