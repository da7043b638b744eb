"""A constant draft length (Leviathan et al. 2023)."""

from __future__ import annotations

from ..draft import Context, Draft, Verdict


class ConstantLength:
    """Always `gamma` tokens.

    Args:
        after: rounds before the first draft, in which the target is alone.
    """

    def __init__(self, gamma: int, after: int = 0) -> None:
        self.gamma, self.after = gamma, after
        self._rows = self._rounds = 0

    def start(self, rows: int) -> None:
        self._rows, self._rounds = rows, 0

    def budget(self) -> list[int]:
        return [self.gamma if self._rounds >= self.after else 0] * self._rows

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """A constant counts rounds and learns nothing."""
        self._rounds += 1
