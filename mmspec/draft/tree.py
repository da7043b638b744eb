"""A smaller model drafts a tree of a fixed shape, level by level."""

from __future__ import annotations

import torch
from torch import Tensor

from ..config import Siblings
from ..engine.coins import RoundCoins
from ..engine.types import Categorical, Context, Draft, Law, OneHot, Scores, Verdict
from ..engine.types import WithoutReplacement as Without
from .model import TokenModel, catch_up


class TreeDrafter:
    """Every node of level d gets `widths[d]` children.

    Args:
        model: the draft model; its cache holds committed tokens, the tree is read anew per level.
        widths: children of a node, by level: (3, 2) makes 3 + 6 nodes.
        siblings: how they come about: drawn "without-replacement" (Jeon et al. 2024), drawn
            "independent"-ly, or the "top" of the law, without chance (EAGLE-2's choice).
    """

    def __init__(
        self,
        model: TokenModel,
        widths: tuple[int, ...],
        siblings: Siblings = "without-replacement",
    ) -> None:
        self.model, self.widths, self.siblings = model, widths, siblings
        self._known: list[int] = []

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._known = [-1] * context.rows

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        widths, device, rows = self.widths[: max(budget)], context.tokens.device, context.rows
        if not widths:
            return Draft(
                context.tokens[:, :0],
                torch.zeros(rows, dtype=torch.long, device=device),
                Categorical(torch.zeros(0)),
            )
        inputs, start = catch_up(context, self._known)
        self._known = list(context.base)
        laws = self.model.extend(inputs, start)[:, -1:]  # [B, M, V]: of the level's parents
        root = inputs[:, -1:]
        draft = Draft(root[:, :0], context.lengths * 0, OneHot(), context.tokens[:, :0])
        above = torch.full((1,), -1, device=device)  # the level's parents
        node_laws: list[Tensor] = []
        drawn = 0
        for level, width in enumerate(widths):
            chosen = self._siblings(laws, width, coins, drawn)  # [B, M, width]
            drawn += chosen.shape[1] * width
            node_laws.append(laws.repeat_interleave(width, 1))
            parents = above.repeat_interleave(width).expand(rows, -1)
            draft = self._grown(draft, chosen.flatten(1), parents, level + 1)
            above = torch.arange(draft.nodes - parents.shape[1], draft.nodes, device=device)
            if level + 1 < len(widths):
                places = [b - 1 for b in context.base]
                tree = torch.cat([root, draft.tokens], dim=1)
                laws = self.model.extend(tree, places, draft)[:, above + 1]
        draft.law = self._law(torch.cat(node_laws, 1))
        draft.lengths = self._real(budget, device)
        return draft

    def _grown(self, draft: Draft, tokens: Tensor, parents: Tensor, levels: int) -> Draft:
        """The draft with one more level."""
        assert draft.parents is not None
        tokens = torch.cat([draft.tokens, tokens], dim=1)
        lengths = torch.full_like(draft.lengths, tokens.shape[1])
        parents = torch.cat([draft.parents, parents], dim=1)
        return Draft(tokens, lengths, OneHot(), parents, bounds=(levels, max(self.widths)))

    def _real(self, budget: list[int], device: torch.device) -> Tensor:
        """Nodes `[B]` that lie within each row's depth; levels stand one after the other."""
        sizes, level = [0], 1
        for width in self.widths:
            level *= width
            sizes.append(sizes[-1] + level)
        return torch.tensor([sizes[min(b, len(self.widths))] for b in budget], device=device)

    def _siblings(self, laws: Tensor, width: int, coins: RoundCoins, drawn: int) -> Tensor:
        """Children `[B, M, width]` of nodes with the given laws `[B, M, V]`."""
        if self.siblings == "top":
            return laws.topk(width, dim=-1).indices
        chosen = []
        for k in range(width):
            x = coins.draw(laws, drawn + k * laws.shape[1])
            chosen.append(x)
            if self.siblings == "without-replacement":
                left = laws.scatter(2, x[..., None], 0.0)
                # a law with fewer tokens than children: the last one is drawn again
                laws = torch.where((left > 0).any(-1, keepdim=True), left, laws)
        return torch.stack(chosen, 2)

    def _law(self, laws: Tensor) -> Law:
        if self.siblings == "top":
            return OneHot()
        return Without(laws) if self.siblings == "without-replacement" else Categorical(laws)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # what the tree left in the cache stands behind the last committed token of its time
        self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]
