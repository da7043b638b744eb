"""Stop at the first unsure token: transformers' assisted generation, Kangaroo (Liu et al. 2024)."""

from __future__ import annotations

from torch import Tensor

from ..draft import Context, Draft, Verdict


class ConfidenceLength:
    """Draft on while the drafter gave its own token a probability of at least `threshold`.

    The unsure token itself stays in the draft: taking it out because of what it is would change
    the law of the output.
    """

    def __init__(self, most: int, threshold: float = 0.4) -> None:
        self.most, self.threshold = most, threshold
        self._rows = 0

    def start(self, rows: int) -> None:
        self._rows = rows

    def budget(self) -> list[int]:
        return [self.most] * self._rows

    def more(self, confidence: Tensor) -> Tensor:
        """Rows `[B]` that draft on, given the probabilities `[B, n]` of their tokens so far."""
        return confidence[:, -1] >= self.threshold

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        pass
