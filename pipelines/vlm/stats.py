"""Counters of answers: tokens of pictures beside those of text."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ...engine.stats import SpecStats


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
