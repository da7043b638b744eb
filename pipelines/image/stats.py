"""Counters of pictures of token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.stats import SpecStats


@dataclass
class ImageStats(SpecStats):
    """What a batch of pictures took.

    Attributes:
        sibling_calls: calls of a smaller model that drew a small picture first, per row; empty:
            there is no such model.
    """

    sibling_calls: list[int] = field(default_factory=list)

    def per_sample(self, shared: bool = False) -> dict[str, float]:
        means = super().per_sample(shared)
        if self.sibling_calls:
            means["sibling_calls_per_sample"] = sum(self.sibling_calls) / len(self.sibling_calls)
        return means

    def as_dict(self) -> dict[str, Any]:
        return {"sibling_calls_per_sample": 0.0, **super().as_dict()}
