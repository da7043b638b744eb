"""A constant draft length (Leviathan et al. 2023)."""

from __future__ import annotations

from ..types import Context, Draft, Verdict


class ConstantLength:
    """Always `gamma` tokens."""

    def __init__(self, gamma: int) -> None:
        self.gamma, self._rows = gamma, 0

    def start(self, rows: int) -> None:
        self._rows = rows

    def budget(self) -> list[int]:
        return [self.gamma] * self._rows

    def observe(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """A constant learns nothing."""
