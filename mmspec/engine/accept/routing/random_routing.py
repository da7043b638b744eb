"""Drafted blocks of video stand by chance: what a reward has to beat at the same share."""

from __future__ import annotations

import torch

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from .base import check_share, routed


class RandomRoutingRule:
    """A block stands with probability `draft_share`, whatever it shows.

    Raises:
        InputError: the share is out of range.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(self, draft_share: float) -> None:
        check_share(draft_share)
        self.draft_share = draft_share

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes blocks of any law, one a row at most."""
        chance = torch.full_like(draft.live(), self.draft_share, dtype=torch.float64)
        return routed(draft, coins.accept(chance, draft.lengths))
