"""Speculative Jacobi decoding: the target's own last laws draft a window (Teng et al. 2024)."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.types import Categorical, Context, Draft, Scores, Verdict


class JacobiDrafter:
    """A window of W positions; each holds a token drawn from the law of the previous iteration.

    After a round, the positions behind the last emitted token keep the laws that the target just
    gave them, and their tokens are drawn anew: q is exactly what they were drawn from.

    Args:
        vocab_size: V.
        init: the law from which a position that enters the window is drawn: "uniform", or
            "previous", the last law that the target gave, which neighbouring image tokens often
            share. (The paper takes a random token as chosen, q = 1, which accepts it with
            probability p(x); with q = 1/V it is accepted with min(1, V p(x)), as exactly.)
    """

    def __init__(self, vocab_size: int, init: Literal["uniform", "previous"] = "previous") -> None:
        self.vocab_size, self.init = vocab_size, init
        self._uniform = torch.tensor(1 / vocab_size, dtype=torch.float64)
        self._laws: Tensor | None = None  # [B, K, V] laws of the next positions, K may be 0

    def start(self, context: Context) -> None:
        self._laws = None

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        width, rows, device = max(budget), context.rows, context.tokens.device
        lengths = torch.tensor(budget, device=device)
        uniform, index = self._uniform.to(device), None
        if self._laws is None:
            laws = uniform.expand(rows, width, self.vocab_size)
        else:
            # position j of the window was scored at index shift + j, if the last call reached it
            index = self._shift[:, None] + torch.arange(width, device=device)
            last = torch.minimum(index, self._scored[:, None] - 1)
            laws = self._laws.gather(1, last[..., None].expand(-1, -1, self.vocab_size))
            if self.init == "uniform":
                laws = torch.where((index == last)[..., None], laws, uniform)
        tokens = self.redraw(laws, index, coins) if width else context.tokens[:, :0]
        return Draft(tokens, lengths, Categorical(laws))

    def redraw(self, laws: Tensor, index: Tensor | None, coins: RoundCoins) -> Tensor:
        """Tokens `[B, W]` of the window, each from its law in `laws [B, W, V]`.

        `index [B, W]` is where each position stood in the last window; None: there was none.
        """
        return coins.draw(laws)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._laws, self._shift = scores.probs, verdict.accepted + 1
        self._scored = draft.lengths + 1  # laws behind filling nodes are not the row's own
