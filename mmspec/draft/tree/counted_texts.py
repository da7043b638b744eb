"""Texts of a batch with their trigrams, as they are written."""

from __future__ import annotations

from torch import Tensor

from ...engine.draft import Context
from .trigrams import LivingTrigrams, Trigrams


class CountedTexts:
    """The texts in all rows and what their tokens followed.

    Args:
        above: see `trigrams.pair`.
        prompt: tokens `[N, P]` in front of every sample's output, -1 where there is none; None:
            unknown.
        table: what was counted before, and is counted for later; None: nothing is kept.

    Attributes:
        texts: tokens by row.
        counts: trigrams by row.
    """

    def __init__(
        self, above: int, prompt: Tensor | None = None, table: LivingTrigrams | None = None
    ) -> None:
        self.above, self.prompt, self.table = above, prompt, table
        self.texts: list[list[int]] = []
        self.counts: list[Trigrams] = []
        self._read: list[int] = []

    def start(self, context: Context) -> None:
        """A new batch begins."""
        if self.table is not None:
            self.table.begin()
        self.texts, self._read = [[] for _ in range(context.rows)], [0] * context.rows
        self.counts = [Trigrams() for _ in range(context.rows)]
        self.seat(context, [*range(context.rows)])

    def seat(self, context: Context, rows: list[int]) -> None:
        """Read the prompts of the samples that begin in these rows."""
        prompts: list[list[int]] = [[] for _ in range(context.rows)]
        if self.prompt is not None:
            prompts = context.of_samples(self.prompt).tolist()
        for row in rows:
            self.counts[row] = Trigrams() if self.table is None else self.table.row()
            self.texts[row] = [token for token in prompts[row] if token >= 0]
            self._read[row] = 0
            self.counts[row].learn(self.texts[row], 0, self.above)

    def follow(self, context: Context) -> None:
        """Count what was written since the last time."""
        first, last = min(self._read, default=0), max(context.base, default=0)
        if first == last:
            return
        new = context.tokens[:, first:last].tolist()
        for row, (known, end) in enumerate(zip(self._read, context.base, strict=True)):
            text = self.texts[row]
            start = len(text)
            text += new[row][known - first : end - first]
            self.counts[row].learn(text, start, self.above)
        self._read = list(context.base)

    def tail(self, row: int) -> list[int]:
        """The end of a row's text that lookups need."""
        return self.texts[row][-self.above :]
