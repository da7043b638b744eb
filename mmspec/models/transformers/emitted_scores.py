"""Scores that emitted tokens were drawn by, as transformers' `generate` gives them out."""

from __future__ import annotations

import torch
from torch import Tensor

from ...engine.draft import Context, Draft, Verdict


class EmittedScores:
    """Collects, round by round, one row of scores for every token of the output."""

    def __init__(self) -> None:
        self._rounds: list[tuple[list[tuple[int, int, int]], Tensor]] = []

    def take(self, context: Context, draft: Draft, verdict: Verdict, scores: Tensor) -> None:
        """Hear of a round's verdict; `context` does not hold the emitted tokens yet.

        Args:
            context, draft, verdict: of the round.
            scores: behind the last tokens and behind every node `[B, 1 + nodes, V]`.
        """
        index = verdict.drawn_by(draft)[..., None].expand(-1, -1, scores.shape[-1])
        samples = context.samples or range(context.rows)
        rows = zip(context.base, samples, context.finished, strict=True)
        places = [(row, sample, base) for row, (base, sample, over) in enumerate(rows) if not over]
        self._rounds.append((places, scores.gather(1, index).float()))

    def columns(self, lengths: list[int], width: int) -> tuple[Tensor, ...]:
        """Scores `[N, V]` of every column of the output; 0 behind a row's end.

        Args:
            lengths: tokens of every sample.
            width: columns.
        """
        last = self._rounds[-1][1] if self._rounds else torch.zeros(0, 0, 0)
        out = last.new_zeros(len(lengths), width, last.shape[-1])
        for places, scores in self._rounds:
            for row, sample, base in places:
                # what is beyond the emitted tokens gives way to the next round's
                some = scores[row, : max(0, width - base)]
                out[sample, base : base + len(some)] = some
        for sample, length in enumerate(lengths):
            out[sample, length:] = 0
        return tuple(column.contiguous() for column in out.unbind(1))
