"""The heuristic schedule of transformers' assisted generation."""

from __future__ import annotations

from ..draft import Context, Draft, Verdict


class HeuristicLength:
    """+2 after a draft that was accepted whole, −1 after any other, never below 1.

    transformers, `AssistedCandidateGenerator.update_candidate_strategy`
    (`num_assistant_tokens_schedule="heuristic"`), kept per row.
    """

    def __init__(self, gamma: int, most: int) -> None:
        self.gamma, self.most = gamma, most
        self._budget: list[int] = []

    def start(self, rows: int) -> None:
        self._budget = [min(self.gamma, self.most)] * rows

    def budget(self) -> list[int]:
        return list(self._budget)

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        told = zip(context.reached, context.accepted, strict=True)
        for row, (drafted, kept) in enumerate(told):
            if drafted:  # a finished row, or one at its last token, drafted nothing
                step = 2 if kept == drafted else -1
                self._budget[row] = min(max(1, self._budget[row] + step), self.most)
