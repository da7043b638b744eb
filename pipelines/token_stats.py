"""Counters of pictures and of answers of token ids."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..engine.stats import SpecStats


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


@dataclass
class VlmStats(SpecStats):
    """What a batch of answers took.

    Attributes:
        visual_tokens: columns of pictures in the target's prompt, per row.
        draft_visual_tokens: those that a drafter reads which sees them, per row.
        branches: weights by which a draft head's compressor chose among its branches, per row.
    """

    visual_tokens: list[int] = field(default_factory=list)
    draft_visual_tokens: list[int] = field(default_factory=list)
    branches: list[dict[str, float]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        rows = max(1, len(self.calls))
        return {
            **super().as_dict(),
            "visual_tokens_per_sample": sum(self.visual_tokens) / rows,
            "draft_visual_tokens_per_sample": sum(self.draft_visual_tokens) / rows,
            "branches": self.branches,
        }
