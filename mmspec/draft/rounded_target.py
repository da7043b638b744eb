"""The target's own network on rounded weights drafts, over the target's cache (SpecQD, Georganas et
al. 2025)."""

from __future__ import annotations

from ..engine.draft import Context, Draft, Scores, Verdict
from .draft_model import ModelDrafter


class RoundedDrafter(ModelDrafter):
    """A `ModelDrafter` whose model never has to catch up: what the target committed, it knows."""

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self._known = self._reached = [base - 1 for base in context.base]
