"""A smaller model drafts a tree of a fixed shape, level by level."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..config import Siblings
from ..engine.coins import RoundCoins
from ..engine.types import Categorical, Context, Draft, Law, OneHot, Scores, Verdict
from ..engine.types import WithoutReplacement as Without
from .model import TokenModel, catch_up
from .shape import TreeShape


class TreeDrafter:
    """The draft model says what may follow every node of the tree.

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
        self.model, self.shape, self.siblings = model, TreeShape(widths), siblings
        self._known: list[int] = []

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._known = [-1] * context.rows

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        tokens = context.tokens[:, :0]
        laws: list[Tensor] = []
        widths, ends = self.shape.widths[: max(budget)], self.shape.ends
        if widths:
            inputs, start = catch_up(context, self._known)
            self._known = list(context.base)
            above = self.model.extend(inputs, start)[:, -1:]  # [B, M, V]: of the level's parents
        for level, width in enumerate(widths):
            chosen = self._siblings(above, width, coins, ends[level])
            laws.append(above.repeat_interleave(width, 1))
            tokens = torch.cat([tokens, chosen.flatten(1)], dim=1)
            if level + 1 < len(widths):
                tree = torch.cat([inputs[:, -1:], tokens], dim=1)
                drafted = self.shape.draft(tokens, OneHot())
                scored = self.model.extend(tree, [b - 1 for b in context.base], drafted)
                above = scored[:, ends[level] + 1 :]
        probs = torch.cat(laws, 1) if laws else torch.zeros(0)
        draft = self.shape.draft(tokens, self._law(probs), budget)
        return replace(draft, faulty=probs.sum((1, 2)).isnan()) if laws else draft

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
        # the tree's own entries stand behind the last token that was committed before it
        self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]
