"""Drafted blocks of video stand by their rank among those before them: τ adapts itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from .base import block_rewards, check_frame_rule, check_share, routed

PATIENCE = 4.0  # drafts over which what stood too often, or too rarely, is made up for


class RewardRankRule:
    """A wished share of a clip's drafts stands, the best ones, whatever the reward's scale.

    Of the n rewards seen before in the clip, k are above this one; those equal to it are above it
    or below as if by lot. It stands with probability min(1, max(0, s · (n + 1) − k)): a threshold
    at the running quantile of 1 − s, with a coin at its edge. s is the wished share, more by
    1/`PATIENCE` for every draft that should have stood by now, and less for every one too many.
    If rewards come in any order alike, k is each of 0…n as often, and a draft stands with
    probability s. In whatever order they come, rising or falling, the number of those that stand
    is never further from the wished one than `PATIENCE`. What is no number stands nowhere and
    is forgotten.

    Args:
        draft_share: the share s that is wished.
        frame_rule: whose reward a block's is, see `block_rewards`.

    Attributes:
        seen: rewards of each row's drafts so far `[B, n]`, NaN where a draft had none.
        owed: how many more of each row's should have stood `[B]`. Both are what the rule needs to
            go on.

    Raises:
        InputError: an argument is out of range.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(self, draft_share: float, frame_rule: str = "worst") -> None:
        check_share(draft_share)
        check_frame_rule(frame_rule)
        self.draft_share, self.frame_rule = draft_share, frame_rule
        self.seen: Tensor | None = None
        self.owed: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes blocks of any law, one a row at most."""
        rewards = block_rewards(scores, self.frame_rule)
        rewards = rewards.masked_fill(~draft.live(), torch.nan)
        seen = rewards[:, :0] if self.seen is None else self.seen
        owed = rewards.new_zeros(len(rewards)).double() if self.owed is None else self.owed
        better = (seen[:, None] > rewards[..., None]).sum(-1)
        equal = (seen[:, None] == rewards[..., None]).sum(-1)
        known = (~seen.isnan()).sum(1, keepdim=True)
        share = self.draft_share + owed[:, None] / PATIENCE
        above = (share * (known + 1) - better).clamp_min(0)
        chance = above.minimum(equal + 1) / (equal + 1)  # mean over where the lot puts it
        judged = ~rewards.isnan()
        stands = coins.accept(chance.masked_fill(~judged, 0), draft.lengths)
        self.seen = torch.cat([seen, rewards], dim=1)
        self.owed = owed + (judged * (self.draft_share - stands.double())).sum(1)
        return routed(draft, stands)
