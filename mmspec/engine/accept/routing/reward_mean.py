"""Drafted blocks of video stand as long as their mean reward is as wished: τ adapts itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from .base import block_rewards, check_frame_rule, routed


class RewardMeanRule:
    """The drafts of a clip that stand have the wished mean reward at least, at every moment.

    With n of the clip standing, whose rewards sum up to R, the next stands if its own reaches
    (n + 1) · wish − R: better ones before it make up for a worse one. What is no number stands
    nowhere.

    Args:
        wish: the mean that is wished, on the reward's own scale.
        frame_rule: whose reward a block's is, see `block_rewards`.

    Attributes:
        stood: rewards of each row's drafts so far `[B, n]`, NaN where a draft did not stand; what
            the rule needs to go on.

    Raises:
        InputError: there is no such frame rule.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(self, wish: float, frame_rule: str = "worst") -> None:
        check_frame_rule(frame_rule)
        self.wish, self.frame_rule = wish, frame_rule
        self.stood: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes blocks of any law, one a row at most."""
        rewards = block_rewards(scores, self.frame_rule)
        stood = rewards[:, :0] if self.stood is None else self.stood
        above = (stood - self.wish).nansum(1, keepdim=True)
        stands = draft.live() & (rewards - self.wish + above >= 0)
        self.stood = torch.cat([stood, rewards.masked_fill(~stands, torch.nan)], dim=1)
        return routed(draft, stands)
