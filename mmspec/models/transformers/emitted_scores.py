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
        most = int(verdict.counts.max())
        index = verdict.drawn_by(draft)[:, :most, None].expand(-1, -1, scores.shape[-1])
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
        with torch.inference_mode(False), torch.no_grad():  # normal tensors, for their owner
            shape = width, len(lengths), last.shape[-1]
            out = torch.zeros(shape, dtype=last.dtype, device=last.device)
            for places, scores in self._rounds:
                for row, sample, base in places:
                    # what is beyond the emitted tokens gives way to the next round's
                    some = scores[row, : max(0, width - base)]
                    out[base : base + len(some), sample] = some
            for sample, length in enumerate(lengths):
                out[length:, sample] = 0
        return tuple(out.unbind(0))
