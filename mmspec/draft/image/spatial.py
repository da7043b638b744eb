"""Spatially speculative drafting: blocks of rows from heads that look below and to the right.

Xiang et al. 2026 (arXiv 2606.20543) for the two directions; the window that carries a block from
one call to the next is a coupled Jacobi window (So et al. 2025).
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.accept.local import LocalRule
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, ContractError
from ...models.guided import GuidedDecoder
from ...models.llamagen.spatial_heads import SpatialDecoder, guided_states, mean_state, places_above
from ...models.prefill import WHOLE
from ..jacobi.coupled import CoupledJacobiDrafter
from ..sound_laws import faults, mended


class SpatialDrafter(CoupledJacobiDrafter):
    """Drafts as many rows of the picture as it is allowed to, in raster order.

    A cell that the target has already judged moves on to the law that it was given, as in
    `CoupledJacobiDrafter`; one that it has not seen is drawn from the heads, from left to right and
    row by row. Where the row above has not been judged either, the heads read its tokens alone.

    Every node follows the law that the draft says, whatever was drawn in front of it: the heads
    read cells that come earlier in raster order, and no others. So an exact rule stays exact. A
    hidden state may stem from a token that fell; it is an older opinion on an earlier cell, and
    only makes a poorer draft.

    Args:
        heads: trained for the target.
        target: the network that is judged by; it will leave its hidden states behind.
        row: positions in a row of the picture.
        rule: a relaxed rule that will judge the drafts: what it would let stand stays where it is
            in the window too, as its law moves, or most of it would be gone when it comes to be
            judged. The law that the draft says then is the one that the rule takes it to follow.
            None: tokens follow their laws exactly.
    """

    carries = True  # what is drawn lives on from round to round, see `GuardedDrafter`

    def __init__(
        self, heads: SpatialDecoder, target: GuidedDecoder, row: int, rule: LocalRule | None = None
    ) -> None:
        super().__init__(len(heads.embeddings), row=row)
        self.heads, self.target, self.rule = heads, target, rule
        target.watch(prefix=WHOLE)

    def start(self, context: Context) -> None:
        super().start(context)
        model, dim = self.target, self.heads.embeddings.shape[1]
        condition = model.prefix.new_zeros(len(model.prefix), 1, dim)
        if model.offset > 1:  # a prefix of one column has no states until the first call
            assert model.hidden is not None
            condition = mean_state(model.hidden, model.pads)
        self._summary = self.heads.summary(guided_states(condition, model.scale)[:, 0])
        self._states = condition.new_zeros(context.rows, context.limit + 1, 2 * dim)
        self._base = [0] * context.rows  # where the last draft began
        self._reach = [0] * context.rows  # how far it went
        self._judged = [0] * context.rows  # cells in front of these have a state, and a law

    def seat(self, context: Context, rows: list[int]) -> None:
        raise ContractError("heads of pictures take in no sample while others run")

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._reach, width, device = list(budget), max(budget), context.tokens.device
        lengths = torch.tensor(budget, device=device)
        if not width:
            return Draft(context.tokens[:, :0], lengths, Categorical(torch.zeros(0)))
        positions = context.lengths[:, None] + torch.arange(width, device=device)
        known = [min(width, j - b) for j, b in zip(self._judged, context.base, strict=True)]
        tokens = positions.new_zeros(context.rows, width)
        laws = self._states.new_empty(context.rows, width, self.vocab_size)
        if last := max(known):  # columns that some row has a law for
            assert self._laws is not None
            index = self._shift[:, None] + torch.arange(last, device=device)
            laws[:, :last] = pick(self._laws, torch.minimum(index, self._scored))
            tokens[:, :last] = self.redraw(context, laws[:, :last], index, coins)
        good = torch.ones_like(tokens, dtype=torch.bool)
        if min(known) < width:
            self._draw_new(context, positions, tokens, laws, good, known, coins)
        draft = Draft(tokens, lengths, Categorical(laws), positions=positions)
        draft.faulty = faults(good, draft)
        return draft

    def stays(
        self, laws: Tensor, q: Tensor, tokens: Tensor, lengths: Tensor, coins: RoundCoins
    ) -> Tensor:
        if self.rule is None:
            return super().stays(laws, q, tokens, lengths, coins)
        return self.rule.stand(laws, q, tokens, lengths, coins)

    def _draw_new(
        self,
        context: Context,
        positions: Tensor,
        tokens: Tensor,
        laws: Tensor,
        good: Tensor,
        known: list[int],
        coins: RoundCoins,
    ) -> None:
        """Fill in `tokens [B, W]` and `laws [B, W, V]` of row b from column `known[b]` on.

        `good [B, W]` becomes False where the heads give no law.
        """
        heads, row, width = self.heads, self.row, tokens.shape[1]
        start = context.lengths[:, None]
        new = positions >= start + torch.tensor(known, device=positions.device)[:, None]
        before = start + torch.arange(-heads.left, 0, device=positions.device)
        line = torch.cat([context.tokens.gather(1, before.clamp_min(0)), tokens], dim=1)
        column = min(known)
        while column < width:
            # as far as the cells above are drawn: to the end of the row, or a row ahead
            firsts = [(b + column) % row for b in context.base]
            end = min(width, *(column + row - min(first, heads.reach) for first in firsts))
            below, skip = self._look_below(context, positions[:, column:end], line[:, heads.left :])
            for n in range(column, end):
                left = [line[:, heads.left + n - 1 - k] for k in range(heads.left)]
                if any((b + n) % row < heads.left for b in context.base):
                    edge = positions[:, n] % row
                    left = [t.where(edge > k, self.vocab_size) for k, t in enumerate(left)]
                logits = heads.logits(below[:, n - column], skip[:, n - column], left)
                law, good[:, n] = mended(self.target.warp(logits))
                drawn = coins.draw(law, n)
                if n < max(known):  # other rows have been judged here
                    law = torch.where(new[:, n, None], law, laws[:, n])
                    drawn = torch.where(new[:, n], drawn, tokens[:, n])
                    good[:, n] |= ~new[:, n]
                laws[:, n], line[:, heads.left + n] = law, drawn
            column = end
        tokens.copy_(line[:, heads.left :])

    def _look_below(self, context: Context, cells: Tensor, window: Tensor) -> tuple[Tensor, Tensor]:
        """Read the row above `cells [B, n]`, as `SpatialDecoder.look_below` does.

        `window [B, W]` are the tokens behind the committed ones, as far as they are drawn.
        """
        reach, device = self.heads.reach, cells.device
        first = cells[:, :1] - self.row - reach
        run = first + torch.arange(cells.shape[1] + 2 * reach, device=device)
        at = run.clamp(0, context.limit - 1)  # filling may lie further off
        ahead = (run - context.lengths[:, None]).clamp(0, window.shape[1] - 1)
        committed = run < context.lengths[:, None]
        tokens = torch.where(committed, context.tokens.gather(1, at), window.gather(1, ahead))
        seen = run < torch.tensor(self._judged, device=device)[:, None]
        index, exist = places_above(cells, self.row, reach)
        states = pick(self._states, at)
        index = index - first[..., None]
        return self.heads.look_below(states, seen, tokens, index, exist, self._summary)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        assert scores.hidden is not None
        states = guided_states(scores.hidden, self.target.scale)  # [B, N + 1, 2D]
        positions = (context.lengths - verdict.counts).clamp_min(0)[:, None]
        positions = positions + torch.arange(states.shape[1], device=positions.device)
        # what lies behind a row's own draft is not looked at
        positions = positions.clamp_max(context.limit)[..., None].expand_as(states)
        self._states.scatter_(1, positions, states)
        self._judged = [b + n + 1 for b, n in zip(self._base, self._reach, strict=True)]
        self._base, self._reach = list(context.base), [0] * context.rows
