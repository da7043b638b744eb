"""A coupled window whose first tokens have siblings: SJD-PAC (Kang et al. 2026), made exact."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, WithoutReplacement
from ...methods.parts.windows import JacobiInit
from ..tree.shape import TreeShape
from ..tree.siblings import draw_siblings
from .coupled import CoupledJacobiDrafter

_DRAWS = 256  # more than a window has: others have draws of their own


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

    def window(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        """The window alone."""
        return super().propose(context, budget, coins)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        window = self._window = self.window(context, budget, coins)
        if not window.nodes or not self.widths:
            return window
        assert isinstance(window.law, Categorical)
        shape, laws, device = self._shape(window), window.law.probs, window.tokens.device
        levels, ends = len(shape.widths), shape.ends
        depth = torch.tensor([d for d in range(levels) for _ in range(ends[d], ends[d + 1])])
        rank = torch.tensor(
            [
                n % width
                for d, width in enumerate(shape.widths)
                for n in range(ends[d + 1] - ends[d])
            ]
        )
        depth, rank = depth.to(device), rank.to(device)
        behind = torch.arange(levels, window.nodes, device=device)  # of the tree: the window alone
        tokens = self._candidates(window.tokens, laws, coins)[:, depth, rank]
        # the window's own token is the first of its level
        last = torch.tensor([ends[levels - 1]], device=device)
        parents = torch.cat([last, ends[-1] + behind[:-1] - levels])[: len(behind)]
        nodes = torch.tensor(ends, device=device)  # of as many levels as a row has room for
        nodes = torch.cat([nodes, ends[-1] + 1 + behind - levels])
        return Draft(
            torch.cat([tokens, window.tokens[:, levels:]], dim=1),
            nodes[window.lengths],
            WithoutReplacement(torch.cat([laws[:, depth], laws[:, levels:]], dim=1)),
            torch.cat([shape.parents.to(device), parents]).expand(context.rows, -1),
            bounds=(window.nodes, max(shape.widths)),
            faulty=window.faulty,
        )

    def _candidates(self, tokens: Tensor, laws: Tensor, coins: RoundCoins) -> Tensor:
        """Candidates `[B, L, K]` of the tree's positions: the window's tokens, and others.

        Args:
            tokens, laws: of the window `[B, W]`, `[B, W, V]`.
        """
        # of a window that is shorter than the tree, too: numbers of draws are always the same
        levels = torch.arange(len(self.widths), device=tokens.device).clamp_max(tokens.shape[1] - 1)
        own, count = tokens[:, levels], max(self.widths) - 1
        if not count:
            return own[..., None]
        left = self.left(laws[:, levels], own)
        others = draw_siblings(left, count, "without-replacement", coins, _DRAWS)
        return torch.cat([own[..., None], others], dim=2)

    def left(self, laws: Tensor, tokens: Tensor) -> Tensor:
        """Weights `[B, L, V]` that the others of the first positions are drawn by.

        Args:
            laws, tokens: of the window there `[B, L, V]`, `[B, L]`.
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
        shape = self._shape(window)
        levels, ends = len(shape.widths), shape.ends
        place = torch.arange(window.nodes, device=draft.tokens.device)
        way = (ends[-1] + place - levels).repeat(context.rows, 1)
        for level, width in enumerate(shape.widths):
            eldest = torch.zeros_like(way[:, 0])
            if level:
                eldest = ends[level] + width * (way[:, level - 1] - ends[level - 1])
            kept = level < verdict.accepted
            way[:, level] = torch.where(kept, verdict.path[:, level], eldest)
        slots = torch.nn.functional.pad(way + 1, (1, 0))
        seen = replace(scores, laws=pick(scores.probs, slots))
        super().observe(context, window, seen, verdict)

    def _shape(self, window: Draft) -> TreeShape:
        """The tree, as far as the window goes."""
        return TreeShape(self.widths[: window.nodes])
