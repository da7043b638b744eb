"""Drafted blocks of video stand by their rank among those before them: τ adapts itself."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..types import Contract, Draft, Scores, Verdict
from .routing import block_rewards, check_frame_rule, check_share, routed


class RewardRankRule:
    """A wished share of a clip's drafts stands, the best ones, whatever the reward's scale.

    With k of the n rewards seen before in the clip above this one, it stands with probability
    min(1, max(0, share · (n + 1) − k)): a threshold at the running quantile of 1 − share, with a
    coin at its edge. If rewards come in any order alike, k is each of 0…n as often, and a draft
    stands with probability `share` exactly. What is no number stands nowhere and is forgotten.

    Args:
        draft_share: the share s that is wished.
        frame_rule: whose reward a block's is, see `block_rewards`.

    Attributes:
        seen: rewards of each row's drafts so far `[B, n]`, NaN where a draft had none; what the
            rule needs to go on.

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

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes blocks of any law, one a row at most."""
        rewards = block_rewards(scores, self.frame_rule)
        rewards = rewards.masked_fill(~draft.live(), torch.nan)
        seen = rewards[:, :0] if self.seen is None else self.seen
        better = (seen[:, None] > rewards[..., None]).sum(-1)
        known = (~seen.isnan()).sum(1, keepdim=True)
        chance = (self.draft_share * (known + 1).double() - better).clamp(0, 1)
        chance = chance.masked_fill(rewards.isnan(), 0)
        self.seen = torch.cat([seen, rewards], dim=1)
        return routed(draft, coins.accept(chance, draft.lengths))
