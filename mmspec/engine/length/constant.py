"""Draft lengths by rules of thumb: constant (Leviathan et al. 2023), or the heuristic schedule."""

from __future__ import annotations

from ..draft import Context, Draft, Verdict
from ..protocols import DraftLength


class ConstantLength(DraftLength):
    """Always `gamma` tokens.

    Args:
        after: rounds before the first draft, in which the target is alone.
    """

    def __init__(self, gamma: int, after: int = 0) -> None:
        self.gamma, self.after = gamma, after
        self._rounds: list[int] = []

    def start(self, rows: int) -> None:
        self._rounds = [0] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._rounds[row] = 0

    def budget(self) -> list[int]:
        return [self.gamma if rounds >= self.after else 0 for rounds in self._rounds]

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """A constant counts rounds and learns nothing."""
        self._rounds = [rounds + 1 for rounds in self._rounds]


class HeuristicLength(DraftLength):
    """+2 after a draft that was accepted whole, −1 after any other, never below 1.

    transformers, `AssistedCandidateGenerator.update_candidate_strategy`
    (`num_assistant_tokens_schedule="heuristic"`), kept per row.
    """

    def __init__(self, gamma: int, most: int) -> None:
        self.gamma, self.most = gamma, most
        self._budget: list[int] = []

    def start(self, rows: int) -> None:
        self._budget = [min(self.gamma, self.most)] * rows

    def seat(self, context: Context, rows: list[int]) -> None:
        for row in rows:
            self._budget[row] = min(self.gamma, self.most)

    def budget(self) -> list[int]:
        return list(self._budget)

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        told = zip(context.reached, context.accepted, strict=True)
        for row, (drafted, kept) in enumerate(told):
            if drafted:  # a finished row, or one at its last token, drafted nothing
                step = 2 if kept == drafted else -1
                self._budget[row] = min(max(1, self._budget[row] + step), self.most)
