"""A smaller model drafts a tree of a fixed shape, level by level."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import OneHot
from ...methods.parts.shared import Siblings
from ...models.token_model import TokenModel
from ..draft_model import TreeModelDrafter
from ..sound_laws import faults, mended
from .shape import TreeShape
from .siblings import draw_siblings, law_of_siblings


class TreeDrafter(TreeModelDrafter):
    """Drafts a tree of a fixed shape: the draft model says what may follow every node.

    Args:
        model: the draft model; its cache holds committed tokens, the tree is read anew per level.
        widths: children of a node, by level: (3, 2) makes 3 + 6 nodes.
        siblings: how they come about, see `draw_siblings`.
    """

    def __init__(
        self, model: TokenModel, widths: tuple[int, ...], siblings: Siblings = "without-replacement"
    ) -> None:
        super().__init__(model)
        self.shape, self.siblings = TreeShape(widths), siblings

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        tokens = context.tokens[:, :0]
        laws: list[Tensor] = []
        good: list[Tensor] = []
        widths, ends = self.shape.widths[: max(budget)], self.shape.ends
        if widths:
            above = self.root_laws(context)  # [B, M, V]: of a level's parents
        for level, width in enumerate(widths):
            above, are_laws = mended(above)
            good.append(are_laws.repeat_interleave(width, 1))
            chosen = draw_siblings(above, width, self.siblings, coins, ends[level])
            laws.append(above.repeat_interleave(width, 1))
            tokens = torch.cat([tokens, chosen.flatten(1)], dim=1)
            if level + 1 < len(widths):
                tree = torch.cat([context.last, tokens], dim=1)
                drafted = self.shape.draft(tokens, OneHot())
                scored = self.model.extend(tree, [b - 1 for b in context.base], drafted)
                above = scored[:, ends[level] + 1 :]
        probs = torch.cat(laws, 1) if laws else torch.zeros(0)
        draft = self.shape.draft(tokens, law_of_siblings(probs, self.siblings), budget)
        if laws:
            draft.faulty = faults(torch.cat(good, 1), draft)
        if self.siblings != "top":  # laws go with them, whose width tells that these ids exist
            draft.checked += (tokens,)
        return draft
