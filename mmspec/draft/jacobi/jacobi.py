"""Speculative Jacobi decoding: the target's own last laws draft a window (Teng et al. 2024)."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical
from ...methods.parts.windows import JacobiInit


class JacobiDrafter:
    """A window of W positions; each holds a token drawn from the law of the previous iteration.

    After a round, the positions behind the last emitted token keep the laws that the target just
    gave them, and their tokens are drawn anew: q is exactly what they were drawn from.

    Args:
        vocab_size: V.
        init: the law from which a position that enters the window is drawn: "uniform"; "previous",
            the last law that the target gave; or "above", the law of the position one row of the
            picture earlier. Neighbouring image tokens often share their laws. (The paper takes a
            random token as chosen, q = 1, which accepts it with probability p(x); with q = 1/V it
            is accepted with min(1, V p(x)), as exactly.)
        row: positions in a row of the picture, for "above".
    """

    def __init__(self, vocab_size: int, init: JacobiInit = "previous", row: int = 1) -> None:
        self.vocab_size, self.init, self.row = vocab_size, init, row
        self._uniform = torch.tensor(1 / vocab_size, dtype=torch.float64)
        self._laws: Tensor | None = None  # [B, K, V] laws of the next positions, K may be 0
        self._shift = self._scored = torch.empty(0)  # [B], [B, 1]: where these begin, and end

    def start(self, context: Context) -> None:
        self._laws = None
        self._past = torch.empty(0)  # [B, limit + 1, V] laws of all positions so far, for "above"
        self._budget: list[int] = []

    def seat(self, context: Context, rows: list[int]) -> None:
        if self._laws is not None:  # as if the target had given uniform ones
            index = torch.tensor(rows, device=self._laws.device)
            self._laws = self._laws.index_fill(0, index, float(self._uniform))
            # and had reached no position of the window
            self._shift = self._shift.index_copy(0, index, self._scored[index, 0] + 1)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        width, device = max(budget), context.tokens.device
        if budget != self._budget:
            self._budget, self._lengths = budget, torch.tensor(budget, device=device)
            self._places = torch.arange(width, device=device)
        if not width:
            return Draft(context.tokens[:, :0], self._lengths, Categorical(torch.zeros(0)))
        index = None
        if self._laws is None:
            new = torch.ones_like(self._places, dtype=torch.bool)
            laws = self._uniform.to(device).expand(context.rows, width, self.vocab_size)
        else:
            # position j of the window was scored at index shift + j, if the last call reached it
            index = self._shift.unsqueeze(1) + self._places
            last = torch.minimum(index, self._scored)
            laws, new = pick(self._laws, last), index > last
            if self.init == "uniform":
                laws = torch.where(new[..., None], self._uniform.to(device), laws)
            if self.init == "above":
                place = context.lengths[:, None] + self._places - self.row
                known = new & (place >= 0) & (place < context.lengths[:, None])
                past = pick(self._past, place.clamp(0, context.limit))
                laws = torch.where(known[..., None], past, laws)
        laws = self.entering(context, laws, new.expand(context.rows, -1))
        tokens = self.redraw(context, laws, index, coins)
        # the target's own laws: where one is none, the target's fault stops the generation
        return Draft(tokens, self._lengths, Categorical(laws), checked=(tokens, laws))

    def entering(self, context: Context, laws: Tensor, new: Tensor) -> Tensor:
        """The laws `[B, W, V]` of a window that positions enter: those that are `new [B, W]`."""
        return laws

    def redraw(
        self, context: Context, laws: Tensor, index: Tensor | None, coins: RoundCoins
    ) -> Tensor:
        """Tokens `[B, W]` of the window, each from its law in `laws [B, W, V]`.

        `index [B, W]` is where each position stood in the last window; None: there was none.
        """
        return coins.draw(laws)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._laws, self._shift = scores.probs, verdict.counts
        self._scored = draft.lengths.unsqueeze(1)  # laws behind filling nodes are not the row's own
        if self.init == "above":
            laws = scores.probs
            if not self._past.numel():
                self._past = laws.new_zeros(context.rows, context.limit + 1, laws.shape[-1])
            place = torch.arange(laws.shape[1], device=laws.device)
            place = (context.lengths - verdict.counts).clamp_min(0)[:, None] + place
            self._past.scatter_(1, place.clamp_max(context.limit)[..., None].expand_as(laws), laws)
