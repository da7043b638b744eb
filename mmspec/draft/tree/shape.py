"""Trees whose shape is fixed beforehand, and the parents of those that lose nodes."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...engine.draft import Context, Draft
from ...engine.laws import Law, OneHot
from ...methods.static_trees import Children, StaticTree, children_of

_KEPT = 64  # drafts whose ancestors are known: by levels, rows and how deep each row goes


@dataclass(frozen=True)
class TreeShape:
    """Tree in which a node of level d has at most `widths[d]` children; levels stand in order.

    Attributes:
        tree, most: which of these it has, see `children_of`; "full", None: all.
    """

    widths: tuple[int, ...]
    tree: StaticTree = "full"
    most: int | None = None
    _made: dict[Any, Draft] = field(default_factory=dict, init=False, repr=False, compare=False)

    @cached_property
    def children(self) -> Children:
        """By level the children of each node of the level above."""
        return children_of(self.widths, self.tree, self.most)

    @cached_property
    def ends(self) -> list[int]:
        """Nodes of the first 0, 1, 2, … levels."""
        return [0, *accumulate(map(sum, self.children))]

    @cached_property
    def parents(self) -> Tensor:
        """The node that every node follows `[N]`, -1 for the root."""
        parents: list[int] = []
        above = [-1]
        for level, counts in enumerate(self.children):
            parents += [node for node, n in zip(above, counts, strict=True) for _ in range(n)]
            above = list(range(self.ends[level], self.ends[level + 1]))
        return torch.tensor(parents)

    def draft(self, tokens: Tensor, law: Law, depths: list[int] | None = None) -> Draft:
        """A draft of `tokens [B, N]`: all of the tree's first levels, row b's `depths[b]` of them.

        Nodes of deeper levels are filling.
        """
        rows, nodes = tokens.shape
        levels = self.ends.index(nodes)
        real = [self.ends[min(depth, levels)] for depth in depths or [levels] * rows]
        key = nodes, tokens.device, *real
        if key not in self._made:
            if len(self._made) > _KEPT:
                self._made.clear()
            parents = self.parents[:nodes].to(tokens.device).expand(rows, -1)
            lengths = torch.tensor(real, device=tokens.device)
            bounds = levels, max(self.widths[:levels], default=1)
            # without the law, which would live as long as the shape does
            made = Draft(tokens, lengths, OneHot(), parents, bounds=bounds, checked=(parents,))
            made.ancestors(), made.live()  # which its copies then know
            self._made[key] = made
        draft = copy(self._made[key])
        draft.tokens, draft.law = tokens, law
        return draft


def draft_of(
    trees: Sequence[Sequence[tuple[int, int]]], bounds: tuple[int, int], context: Context
) -> Draft:
    """A draft of trees that follow from the text without chance.

    Args:
        trees: by row, the nodes' parents, -1 for the root, and tokens, each behind its parent.
        bounds: most levels, and most children of a node.
    """
    most, device = max(map(len, trees)), context.tokens.device
    filled = [[*tree, *[(-1, 0)] * (most - len(tree))] for tree in trees]
    made = torch.tensor(filled, dtype=torch.long, device=device).view(len(trees), most, 2)
    lengths = torch.tensor([len(tree) for tree in trees], device=device)
    return Draft(made[..., 1], lengths, OneHot(), made[..., 0], bounds=bounds)


def renumbered(parents: Tensor, kept: Tensor) -> Tensor:
    """The parents `[B, n]` of the nodes `kept [B, n]`, as places in `kept`."""
    rank = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    place = torch.full_like(parents, -1).scatter_(1, kept, rank)
    above = parents.gather(1, kept)
    return torch.where(above < 0, -1, place.gather(1, above.clamp_min(0)))
