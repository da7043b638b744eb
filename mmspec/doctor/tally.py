"""Counts of accepted tokens, and when one convention accepts far more than another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..engine.stats import SpecStats

ERRORS = 3.0  # standard errors that a difference must exceed
GAIN = 1.15  # and how many times the tokens a call


@dataclass(frozen=True)
class Tally:
    """Drafts of one convention, judged.

    Attributes:
        judged_at, accepted_at: per draft position, how often it was reached, how often it stood.
    """

    judged_at: tuple[int, ...]
    accepted_at: tuple[int, ...]

    @classmethod
    def of(cls, runs: Sequence[SpecStats]) -> Tally:
        """Sum of several generations."""
        size = max((len(run.judged_at) for run in runs), default=0)

        def total(name: str) -> tuple[int, ...]:
            rows = [[*getattr(run, name), *[0] * size] for run in runs]
            return tuple(sum(row[n] for row in rows) for n in range(size))

        return cls(total("judged_at"), total("accepted_at"))

    @property
    def drafts(self) -> int:
        """Drafts of at least one token."""
        return self.judged_at[0] if self.judged_at else 0

    @property
    def tokens_per_call(self) -> float:
        """Mean tokens that a call of the target yields, its own among them."""
        return 1 + sum(self.accepted_at) / max(1, self.drafts)

    @property
    def error(self) -> float:
        """Standard error of `tokens_per_call`, drafts taken as independent.

        With L accepted tokens of a draft, P(L ≥ i) is the share of drafts whose position i stood;
        E L = Σ P(L ≥ i) and E L² = Σ (2 i − 1) P(L ≥ i). A share that is 0 or 1 counts as half a
        draft off it, so that an error is never 0.
        """
        n = max(1, self.drafts)
        shares = [min(max(a / n, 0.5 / n), 1 - 0.5 / n) for a in self.accepted_at]
        mean = sum(shares)
        square = sum((2 * i + 1) * share for i, share in enumerate(shares))
        return math.sqrt(max(square - mean * mean, 0.0) / n)

    @property
    def first(self) -> float:
        """Share of first tokens that stood."""
        return self.accepted_at[0] / max(1, self.drafts) if self.accepted_at else 0.0

    @property
    def first_at_most(self) -> float:
        """Share of first tokens that stood, with what noise may have taken from it.

        Two drafts more that stood and two more that did not keep the error above 0.
        """
        n = self.drafts + 4
        share = (self.first * self.drafts + 2) / n
        return self.first + ERRORS * math.sqrt(share * (1 - share) / n)

    def margin(self, other: Tally) -> float:
        """Tokens a call by which two must differ to be told apart."""
        return ERRORS * math.hypot(self.error, other.error)

    def far_above(self, other: Tally) -> bool:
        """True if it accepts more than `other` by more than noise, and by enough to matter."""
        mine, theirs = self.tokens_per_call, other.tokens_per_call
        return mine - theirs > self.margin(other) and mine > GAIN * theirs

    def described(self) -> str:
        """Counts by position in a few words."""
        pairs = zip(self.accepted_at, self.judged_at, strict=True)
        counts = ", ".join(f"{a}/{n}" for a, n in pairs if n)
        return (
            f"{self.tokens_per_call:.2f} tokens a call (accepted by position: {counts or 'none'})"
        )

    def as_dict(self) -> dict[str, Any]:
        """JSON values."""
        return {
            "tokens_per_call": self.tokens_per_call,
            "standard_error": self.error,
            "judged_at": list(self.judged_at),
            "accepted_at": list(self.accepted_at),
        }
