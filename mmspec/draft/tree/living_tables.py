"""Tables that live on from generation to generation, of drafters that learn as they go."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .successors import SuccessorTable
from .trigrams import LivingTrigrams


@dataclass
class LivingTables:
    """Tables of a pipeline; a drafter begins with its own if its method says so.

    Attributes:
        successors: the likeliest ones of every token.
        trigrams: counts of what followed pairs of tokens.
    """

    successors: SuccessorTable = field(default_factory=SuccessorTable)
    trigrams: LivingTrigrams = field(default_factory=LivingTrigrams)

    def offers(self, greedy: bool) -> dict[str, Callable[[], Any]]:
        """Offers for the drafter of a generation, which is `greedy` or drawn."""
        return {
            "table": lambda: self.successors,
            "trigrams": lambda: self.trigrams,
            "greedy": lambda: greedy,
        }
