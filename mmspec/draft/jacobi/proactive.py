"""A coupled window whose first tokens have siblings: SJD-PAC (Kang et al. 2026), made exact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, WithoutReplacement
from ...methods.parts.windows import JacobiInit
from ..tree.siblings import draw_siblings
from .coupled import CoupledJacobiDrafter


class ProactiveDrafter(CoupledJacobiDrafter):
    """A coupled window, and beside its first tokens others that may stand in their place.

    A token that falls takes those behind it along, whose laws were for another context: rounds that
    keep nothing come in rows. So the first positions have `widths` candidates each: the window's
    own token, and others drawn from the law that it follows, without replacement. Behind every one
    of them stand the candidates of the next position, and behind the window's own the window. It
    costs no call: laws are the ones that the window has anyway.

    The output is exact under recursive rejection. Given all that was ever drawn in front of a
    position, its window token follows its law, however often it was coupled to a new one; the
    others are then drawn as siblings without replacement are, by coins of their own. The released
    code is not exact: it follows the path of which most stands, though a token that stood in front
    of it forbids that; and it draws the others from what the coupling leaves, [p − q]+, but judges
    them as draws from p.

    Args:
        vocab_size, init, row: see `JacobiDrafter`.
        widths: candidates of the first positions.
    """

    def __init__(
        self,
        vocab_size: int,
        init: JacobiInit = "previous",
        row: int = 1,
        widths: tuple[int, ...] = (3, 3),
    ) -> None:
        super().__init__(vocab_size, init, row)
        self.widths = widths
        self._window: Draft | None = None

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        window = self._window = super().propose(context, budget, coins)
        if not window.nodes:
            return window
        assert isinstance(window.law, Categorical)
        shape, probs = self._shape(window.nodes), window.law.probs
        own = window.tokens[:, : shape.levels]
        left, more = self.left(probs[:, : shape.levels], own), max(shape.most - 1, 1)
        others = draw_siblings(left, more, "without-replacement", coins, window.nodes)
        candidates = torch.cat([own[..., None], others], dim=2)  # [B, L, K]
        tokens = candidates[:, shape.depth, shape.rank]
        # a row with less room than others has its window alone
        lengths = window.lengths
        full = lengths == window.nodes
        parents = torch.cat([torch.arange(-1, window.nodes - 1), shape.parents])
        return Draft(
            torch.cat([window.tokens, tokens], dim=1),
            torch.where(full, lengths + len(shape.parents), lengths),
            WithoutReplacement(torch.cat([probs, probs[:, shape.depth]], dim=1)),
            parents.to(tokens.device).expand(context.rows, -1),
            bounds=(window.nodes, shape.most),
        )

    def left(self, laws: Tensor, tokens: Tensor) -> Tensor:
        """Weights `[B, L, V]` that the others of the first positions are drawn by.

        Args:
            laws, tokens: of the window `[B, L, V]`, `[B, L]`.
        """
        left = laws.scatter(2, tokens[..., None], 0.0)
        # a law with one token alone has no others: it is drawn again, and never stands
        return torch.where((left > 0).any(-1, keepdim=True), left, laws)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        window = self._window
        if window is None or not window.nodes or verdict.path is None:
            super().observe(context, draft, scores, verdict)
            return
        # Positions that the path did not reach are seen behind its end, as far as the tree goes
        # there: their laws know more of the output than those behind the window's own tokens.
        shape = self._shape(window.nodes)
        way = torch.arange(window.nodes, device=draft.tokens.device).repeat(context.rows, 1)
        for level in range(shape.levels):
            kept = level < verdict.accepted
            below = way[:, level] if not level else shape.first.to(way.device)[way[:, level - 1]]
            way[:, level] = torch.where(kept, verdict.path[:, level], below)
        slots = torch.nn.functional.pad(way + 1, (1, 0))
        seen = replace(scores, laws=pick(scores.probs, slots))
        super().observe(context, window, seen, verdict)

    def _shape(self, width: int) -> _Shape:
        return shape_of(width, self.widths[:width])


@dataclass(frozen=True)
class _Shape:
    """Tree beside a window of W nodes, which come first.

    Attributes:
        parents, depth, rank: of the E others, `[E]`: the node that each follows, how many stand
            above it, and which of its position's candidates it is.
        first: the eldest child `[W + E]` of every node that has any, else itself.
        levels, most: levels of the tree, and most candidates of a position.
    """

    parents: Tensor
    depth: Tensor
    rank: Tensor
    first: Tensor
    levels: int
    most: int


@cache
def shape_of(width: int, widths: tuple[int, ...]) -> _Shape:
    """The tree with `widths` candidates beside the first nodes of a window of `width` nodes."""
    parents: list[int] = []
    depth: list[int] = []
    rank: list[int] = []
    first = [*range(1, width), width - 1]
    above = [-1]
    for level, count in enumerate(widths):
        nodes = [level]
        for parent in above:
            own = parent == level - 1  # the window's: its eldest child is there
            for n in range(own, count):
                node = width + len(parents)
                parents.append(parent)
                depth.append(level)
                rank.append(n)
                first.append(node)
                nodes.append(node)
                if not own and not n:
                    first[parent] = node
        above = nodes
    parents_, depth_, rank_, first_ = (
        torch.tensor(x, dtype=torch.long) for x in (parents, depth, rank, first)
    )
    return _Shape(parents_, depth_, rank_, first_, len(widths), max(widths, default=1))
