"""Speculative Jacobi decoding: the target's own last laws draft a window (Teng et al. 2024)."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.types import Categorical, Context, Draft, Scores, Verdict


class JacobiDrafter:
    """A window of W positions; each holds a token drawn from the law of the previous iteration.

    After a round, the positions behind the last emitted token keep the laws that the target just
    gave them, and their tokens are drawn anew: q is exactly what they were drawn from.

    Args:
        vocab_size: V.
        init: how a position enters the window. "random" draws a token uniformly and records it as
            chosen (one-hot q), as the paper does; "previous" draws it from the last law of the
            window, which neighbouring image tokens often share.
    """

    def __init__(self, vocab_size: int, init: Literal["random", "previous"] = "random") -> None:
        self.vocab_size, self.init = vocab_size, init
        self._laws: Tensor | None = None  # [B, K, V] laws of the next positions, K may be 0

    def start(self, context: Context) -> None:
        self._laws = None

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        width, rows, device = max(budget), context.rows, context.tokens.device
        lengths = torch.tensor(budget, device=device)
        uniform = torch.full((), 1 / self.vocab_size, device=device)
        if self._laws is None:
            laws = uniform.expand(rows, width, self.vocab_size)
            known = torch.zeros(rows, width, dtype=torch.bool, device=device)
        else:
            # position j of the window was scored at index shift + j, if the last call reached it
            scored = self._laws.shape[1]
            index = self._shift[:, None] + torch.arange(width, device=device)
            known = index < scored
            index = index.clamp_max(scored - 1)[..., None].expand(-1, -1, self.vocab_size)
            laws = self._laws.gather(1, index)
            if self.init == "random":
                laws = torch.where(known[..., None], laws, uniform)
        if not width:
            return Draft(context.tokens[:, :0], lengths, Categorical(laws))
        tokens = coins.draw(laws)
        if self.init == "random":
            chosen = F.one_hot(tokens, self.vocab_size).to(laws.dtype)
            laws = torch.where(known[..., None], laws, chosen)
        return Draft(tokens, lengths, Categorical(laws))

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._laws, self._shift = scores.probs, verdict.accepted + 1
