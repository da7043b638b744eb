"""Token Recycling: the target's own runners-up draft a tree (Luo et al. 2024)."""

from __future__ import annotations

import torch

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import OneHot
from .shape import TreeShape


class RecyclingDrafter:
    """A table remembers the likeliest successors of every token; a fixed tree is read from it.

    Whatever the target scores, kept or not, updates the table, one per row. The tree follows from
    past laws without chance, so its nodes are `OneHot`.

    Args:
        vocab_size: V.
        widths: children of a node, by level; the widest is the number of successors kept.
    """

    def __init__(self, vocab_size: int, widths: tuple[int, ...]) -> None:
        self.vocab_size, self.shape = vocab_size, TreeShape(widths)
        self._table = torch.empty(0)

    def start(self, context: Context) -> None:
        # one line more than tokens takes what is not to be remembered
        size = (context.rows, self.vocab_size + 1, max(self.shape.widths))
        self._table = torch.zeros(size, dtype=torch.long, device=context.tokens.device)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        tokens = context.tokens[:, :0]
        above = context.last
        for width in self.shape.widths[: max(budget)]:
            above = pick(self._table, above)[..., :width].flatten(1)  # the likeliest successors
            tokens = torch.cat([tokens, above], dim=1)
        # nothing is known of what follows no token at all
        depths = [b if known else 0 for b, known in zip(budget, context.base, strict=True)]
        return self.shape.draft(tokens, OneHot(), depths)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        before = (context.lengths - verdict.counts).clamp_min(0)
        root = context.tokens.gather(1, (before - 1).clamp_min(0)[:, None])
        scored = torch.cat([root, draft.tokens], dim=1)  # [B, N + 1]
        best = scores.probs.topk(self._table.shape[2], dim=-1).indices  # [B, N + 1, K]
        real = torch.cat([(before > 0)[:, None], draft.live()], dim=1)
        # of a token that was scored several times the last score counts
        order = torch.where(real, torch.arange(scored.shape[1], device=scored.device), -1)
        last = torch.full_like(self._table[..., 0], -1).scatter_reduce_(1, scored, order, "amax")
        stays = real & (last.gather(1, scored) == order)
        index = torch.where(stays, scored, self.vocab_size)
        self._table.scatter_(1, index[..., None].expand_as(best), best)
