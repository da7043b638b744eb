"""Nobody verifies: what a sceptic compares with."""

from __future__ import annotations

import torch

from ..coins import RoundCoins
from ..draft import Context, Draft, Scores, Verdict
from ..laws import Contract


class UnverifiedRule:
    """Keeps every drafted token."""

    contract: Contract = "lossy"
    local = True

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Keep chains of any law, a node or more a row."""
        last = draft.tokens.gather(1, (draft.lengths[:, None] - 1).clamp_min(0))
        emitted = torch.cat([draft.tokens, last], dim=1)
        return Verdict(draft.lengths, emitted, last, draft.lengths)


class UnaskedTarget:
    """A target that takes no part: what comes out is the drafter's."""

    def start(self, rows: int) -> None:
        """Prepare nothing."""

    def score(self, context: Context, draft: Draft) -> Scores:
        """Laws `[B, N + 1, 1]` that say nothing."""
        return Scores(torch.ones_like(draft.tokens[:, :1, None], dtype=torch.float32), calls=0)

    def sample_next(
        self, context: Context, draft: Draft, verdict: Verdict, coins: RoundCoins
    ) -> Verdict:
        """Return the verdict as it is: nothing is drawn again."""
        return verdict

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        """Keep nothing."""
