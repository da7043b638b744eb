"""Trees whose shape is fixed beforehand, and the parents of those that lose nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ...engine.draft import Draft
from ...engine.laws import Law


@dataclass(frozen=True)
class TreeShape:
    """Tree in which a node of level d has `widths[d]` children; levels stand in order."""

    widths: tuple[int, ...]

    @cached_property
    def ends(self) -> list[int]:
        """Nodes of the first 0, 1, 2, … levels."""
        ends, level = [0], 1
        for width in self.widths:
            level *= width
            ends.append(ends[-1] + level)
        return ends

    @cached_property
    def parents(self) -> Tensor:
        """The node that every node follows `[N]`, -1 for the root."""
        parents: list[int] = []
        above = [-1]
        for level, width in enumerate(self.widths):
            parents += [node for node in above for _ in range(width)]
            above = list(range(self.ends[level], self.ends[level + 1]))
        return torch.tensor(parents)

    def draft(self, tokens: Tensor, law: Law, depths: list[int] | None = None) -> Draft:
        """A draft of `tokens [B, N]`: all of the tree's first levels, row b's `depths[b]` of them.

        Nodes of deeper levels are filling.
        """
        rows, nodes = tokens.shape
        levels = self.ends.index(nodes)
        real = [self.ends[min(depth, levels)] for depth in depths or [levels] * rows]
        return Draft(
            tokens,
            torch.tensor(real, device=tokens.device),
            law,
            self.parents[:nodes].to(tokens.device).expand(rows, -1),
            bounds=(levels, max(self.widths[:levels], default=1)),
        )


def renumbered(parents: Tensor, kept: Tensor) -> Tensor:
    """The parents `[B, n]` of the nodes `kept [B, n]`, as places in `kept`."""
    rank = torch.arange(kept.shape[1], device=kept.device).expand_as(kept)
    place = torch.full_like(parents, -1).scatter_(1, kept, rank)
    above = parents.gather(1, kept)
    return torch.where(above < 0, -1, place.gather(1, above.clamp_min(0)))
