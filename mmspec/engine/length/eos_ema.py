"""Draft lengths that follow where drafts end and how far they stand (DiffuSpec, Li et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..draft import Context, Draft, Verdict
from ..protocols import DraftLength


class EosEmaLength(DraftLength):
    """Lengths of drafts before they end their text, and longer ones where all of that stands.

    Of a draft of k tokens whose first end of text is token s, g = min(s − 1, k) come before it, and
    a of them stand. Means that forget, ḡ ← (1 − ρ) ḡ + ρ g and ā likewise, begin at 0, and the next
    draft has clip(⌊ḡ⌋ + δ · [ā ≥ ḡ], least, most) tokens; the first has most. Each row has its own.

    An end counts where a draft has it: of a tree, on the path of first children, the best one. The
    paper puts the end among all candidates of a search, which would not say that the text ends.

    Args:
        most: tokens of the longest draft; published 30.
        eos: tokens that end a text.
        least_share, growth_share: of these, the shortest draft and δ; published 20 and 10 of 30.
        recency: ρ, the share of the latest draft.
    """

    def __init__(
        self,
        most: int,
        eos: Sequence[int] = (),
        least_share: float = 0.67,
        growth_share: float = 0.33,
        recency: float = 0.5,
    ) -> None:
        self.most, self.eos, self.recency = most, tuple(eos), recency
        self.least = max(1, round(least_share * most))
        self.growth = round(growth_share * most)
        self._rows: list[_Means] = []

    def start(self, rows: int) -> None:
        self._rows = [_Means() for _ in range(rows)]

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._rows[row] = _Means()

    def budget(self) -> list[int]:
        return [self._length(means) for means in self._rows]

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        ends = before_the_end(draft, self.eos) if self.eos and draft.nodes else context.reached
        told = zip(self._rows, context.reached, ends, context.accepted, strict=True)
        for means, reached, end, accepted in told:
            if reached:  # a finished row, or one at its last token, drafted nothing
                means.learn(min(end, reached), accepted, self.recency)

    def _length(self, means: _Means) -> int:
        if not means.known:
            return self.most
        grown = self.growth if means.stood >= means.drafted else 0
        return max(self.least, min(int(means.drafted) + grown, self.most))


class _Means:
    """Means of one row: tokens in front of the end of its drafts, and those of them that stood."""

    def __init__(self) -> None:
        self.drafted = self.stood = 0.0
        self.known = False

    def learn(self, drafted: int, stood: int, recency: float) -> None:
        self.drafted += recency * (drafted - self.drafted)
        self.stood += recency * (stood - self.stood)
        self.known = True


def before_the_end(draft: Draft, eos: Sequence[int]) -> list[int]:
    """Tokens in front of the first that ends each row's draft, or all; of a tree its first path."""
    ends = torch.zeros_like(draft.tokens, dtype=torch.bool)
    for token in eos:
        ends |= draft.tokens == token
    if draft.parents is not None:
        path = _first_path(draft)
        ends = ends.gather(1, path.clamp_min(0)) | (path < 0)
    else:
        ends |= ~draft.live()
    counts: list[int] = (~ends).long().cumprod(1).sum(1).tolist()
    return counts


def _first_path(draft: Draft) -> Tensor:
    """Nodes `[B, levels]` from the root by first children, -1 behind the last."""
    assert draft.parents is not None
    real, at = draft.live(), torch.full_like(draft.lengths, -1)
    path = []
    for _ in range(draft.levels):
        children = real & (draft.parents == at[:, None])  # none has the parent -2
        at = children.long().argmax(1).where(children.any(1), -2)
        path.append(at)
    return torch.stack(path, 1).clamp_min(-1)
