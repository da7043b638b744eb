"""ADED: trigrams of the text, searched for what comes next (Liu et al. 2024)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.protocols import Drafter
from .counted_texts import CountedTexts
from .shape import draft_of
from .trigrams import LivingTrigrams, best_first, monte_carlo

Search = Literal["best-first", "monte-carlo"]
SEARCHES = {"best-first": best_first, "monte-carlo": monte_carlo}


class TrigramDrafter(Drafter):
    """Counts what followed each pair of tokens in the text, and drafts a tree of what is likely.

    The tree follows from the text without chance, so its nodes are `OneHot`. (The published code
    draws a token of its own at every path's end, which changes the law of sampled text.)

    Args:
        nodes, depth, width: most nodes, levels, and children of a node.
        search: how the tree is chosen.
        row: positions in a row of a picture: a token is looked up by the one above and the one to
            the left; 1: of text, by the last two.
        prompt: tokens `[N, P]` in front of every sample's output, -1 where there is none; None:
            unknown.
        table: what was counted before, and is counted for later; None: nothing is kept.
    """

    def __init__(
        self,
        nodes: int = 24,
        depth: int = 4,
        width: int = 12,
        search: Search = "best-first",
        row: int = 1,
        prompt: Tensor | None = None,
        table: LivingTrigrams | None = None,
    ) -> None:
        self.nodes, self.depth, self.width, self.search = nodes, depth, width, search
        self.texts = CountedTexts(max(2, row), prompt, table)

    def start(self, context: Context) -> None:
        self.texts.start(context)

    def seat(self, context: Context, rows: list[int]) -> None:
        self.texts.seat(context, rows)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.texts.follow(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        search, above = SEARCHES[self.search], self.texts.above
        trees = [
            search(counts.likely, self.texts.tail(row), above, self.nodes, depth, self.width)
            for row, (counts, depth) in enumerate(
                zip(self.texts.counts, (min(self.depth, b) for b in budget), strict=True)
            )
        ]
        return draft_of(trees, (min(self.depth, max(budget)), self.width), context)
