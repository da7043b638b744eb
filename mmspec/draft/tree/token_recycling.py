"""Token Recycling: the target's own runners-up draft a tree (Luo et al. 2024)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import OneHot
from ...methods.static_trees import StaticTree, places
from ...models.guided import GuidedDecoder
from ...models.prefill import WHOLE
from .shape import TreeShape
from .successors import SuccessorTable, runners_up, runners_up_of_prefix


class RecyclingDrafter:
    """A table remembers the likeliest successors of every token; a fixed tree is read from it.

    A node's children are the first of its token's successors. Whatever the target scores, kept or
    not, updates the table, one per row; so does the prompt. The tree follows from past laws without
    chance, so its nodes are `OneHot`.

    Args:
        vocab_size: V.
        widths: most children of a node, by level; the widest is the number of successors kept.
        target: leaves its logits behind, which rank the runners-up of greedy laws too; None: the
            laws rank them.
        prompt: tokens `[N, P]` in front of every sample's output, -1 where there is none; None:
            unknown.
        table: what was learnt before, and is learnt for later; None: nothing is kept.
        tree, nodes: which of these children there are, and how many, see `children_of`.
    """

    def __init__(
        self,
        vocab_size: int,
        widths: tuple[int, ...],
        target: GuidedDecoder | None = None,
        prompt: Tensor | None = None,
        table: SuccessorTable | None = None,
        tree: StaticTree = "full",
        nodes: int | None = None,
    ) -> None:
        self.vocab_size = vocab_size
        self.shape = TreeShape(tuple(min(width, vocab_size) for width in widths), tree, nodes)
        self.target, self.prompt, self.table = target, prompt, table
        self._table = torch.empty(0)
        if target is not None:
            target.ranked = True
            if prompt is not None:
                target.prefix_states = WHOLE

    def start(self, context: Context) -> None:
        self._successors = self.table or SuccessorTable()
        # one line more than tokens takes what is not to be remembered
        most, device = max(self.shape.widths), context.tokens.device
        self._table = self._successors.rows(context.rows, (self.vocab_size + 1, most), device)
        known = places(self.shape.children, most)
        self._places = [torch.tensor(place, device=device) for place in known]  # of every level
        self._read_prompt(context, [*range(context.rows)])

    def seat(self, context: Context, rows: list[int]) -> None:
        self._successors.begin(rows)
        self._read_prompt(context, rows)

    def _read_prompt(self, context: Context, rows: list[int]) -> None:
        """Learn from the prompts in these rows."""
        self._root = torch.full_like(context.last, -1)  # in front of the output
        self._told = [False] * context.rows  # on the host: whether there is such a token
        if self.prompt is None:
            return
        prompt = context.of_samples(self.prompt)
        self._root = prompt[:, -1:]
        self._told = (self._root[:, 0] >= 0).tolist()
        if self.target is None:
            return
        count = self._table.shape[2]
        found = runners_up_of_prefix(self.target, rows, count, self.vocab_size)
        if found is None:
            return
        told = prompt.new_full((context.rows, found.shape[1]), -1)
        best = found.new_zeros(context.rows, *found.shape[1:])
        told[rows], best[rows] = prompt[rows, -1 - found.shape[1] : -1], found
        self._learn(told, best)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        tokens = context.tokens[:, :0]
        above = self._before(context, context.lengths).clamp_min(0)
        for place in self._places[: max(budget)]:
            above = pick(self._table, above).flatten(1)[:, place]  # the likeliest successors
            tokens = torch.cat([tokens, above], dim=1)
        # nothing is known of what follows no token at all
        rows = zip(budget, context.base, self._told, strict=True)
        depths = [b if base or told else 0 for b, base, told in rows]
        draft = self.shape.draft(tokens, OneHot(), depths)
        draft.checked += (tokens,)  # of the table, which holds no others
        return draft

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        emitted = torch.tensor(context.emitted, device=draft.tokens.device)  # up to an end token
        root = self._before(context, context.lengths - emitted)
        scored = torch.cat([root, draft.tokens], dim=1)  # [B, N + 1]
        live = F.pad(draft.live(), (1, 0), value=True)
        # of a row that is over, what is said to be scored is not
        live &= emitted[:, None] > 0
        best = runners_up(scores, self._table.shape[2])  # [B, N + 1, K]
        self._learn(torch.where(live, scored, -1), best)

    def _before(self, context: Context, lengths: Tensor) -> Tensor:
        """The token `[B, 1]` in front of a place of the output, -1 if there is none."""
        last = context.tokens.gather(1, (lengths - 1).clamp_min(0)[:, None])
        return torch.where(lengths[:, None] > 0, last, self._root)

    def _learn(self, tokens: Tensor, best: Tensor) -> None:
        """Note the successors `best [B, n, K]` of `tokens [B, n]`, -1 for none.

        Of a token that is there several times the last one counts.
        """
        order = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        order = torch.where(tokens >= 0, order, -1)
        place = torch.where(tokens >= 0, tokens, self.vocab_size)
        last = torch.full_like(self._table[..., 0], -1).scatter_reduce_(1, place, order, "amax")
        stays = (order >= 0) & (last.gather(1, place) == order)
        place = torch.where(stays, place, self.vocab_size)
        self._table.scatter_(1, place[..., None].expand_as(best), best)
