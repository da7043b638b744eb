"""Policies that stop a draft as its tokens are drawn: when one is unsure, or a rejection likely."""

from __future__ import annotations

import torch
from torch import Tensor

from ..accept.chain import token_probs
from ..draft import Context, Draft, Verdict
from ..laws import Categorical
from ..protocols import DraftLength

_BINS = 8  # of the drafter's confidence
_WEIGHT = 4.0  # observations that the first guess counts for


class ConfidenceLength(DraftLength):
    """Draft on while the drafter gave its own token a probability of at least `threshold`.

    The test of transformers' assisted generation, and of Kangaroo (Liu et al. 2024). The unsure
    token itself stays in the draft: taking it out because of what it is would change the law of the
    output.
    """

    def __init__(self, most: int, threshold: float = 0.4) -> None:
        self.most, self.threshold = most, threshold
        self._rows = 0

    def start(self, rows: int) -> None:
        self._rows = rows

    def seat(self, context: Context, rows: list[int]) -> None:
        """Forget nothing: a threshold knows no rows."""

    def budget(self) -> list[int]:
        return [self.most] * self._rows

    def more(self, confidence: Tensor) -> Tensor:
        """Rows `[B]` that draft on, given the probabilities `[B, n]` of their tokens so far."""
        return confidence[:, -1] >= self.threshold


class SpecDecLength(ConfidenceLength):
    """Draft on while 1 − Π a_i, the probability of a rejection so far, is at most `threshold`.

    Huang et al. 2024 (SpecDec++) predict a_i by a trained head. Here it is the share of the row's
    own tokens of like confidence that stood, at first the confidence itself. The token after which
    the row stops stays in the draft.
    """

    def __init__(self, most: int, threshold: float = 0.6) -> None:
        super().__init__(most, threshold)
        self._stood = self._judged = torch.empty(0)

    def start(self, rows: int) -> None:
        super().start(rows)
        self._judged = torch.full((rows, _BINS), _WEIGHT, dtype=torch.float64)
        self._stood = self._judged * self._centres()

    def seat(self, context: Context, rows: list[int]) -> None:
        self._judged[rows], self._stood[rows] = _WEIGHT, _WEIGHT * self._centres()

    @staticmethod
    def _centres() -> Tensor:
        """The confidence in the middle of every bin."""
        return (torch.arange(_BINS, dtype=torch.float64) + 0.5) / _BINS

    def more(self, confidence: Tensor) -> Tensor:
        """Rows `[B]` that draft on, given the probabilities `[B, n]` of their tokens so far."""
        share = (self._stood / self._judged).to(confidence.device)
        return 1 - share.gather(1, _bins(confidence)).prod(1) <= self.threshold

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        if not draft.nodes or not isinstance(draft.law, Categorical):
            return
        node = torch.arange(draft.nodes, device=draft.tokens.device)
        stood = node < verdict.accepted[:, None]
        judged = (node <= verdict.accepted[:, None]) & draft.live()  # the first that fell as well
        bins = _bins(token_probs(draft.law.probs, draft.tokens)).to(self._judged.device)
        for total, which in ((self._stood, stood & judged), (self._judged, judged)):
            total.scatter_add_(1, bins, which.to(total))


def _bins(confidence: Tensor) -> Tensor:
    return (confidence * _BINS).long().clamp(0, _BINS - 1)
