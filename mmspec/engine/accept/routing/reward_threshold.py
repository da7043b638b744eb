"""Drafted blocks of video stand where a reward is content with them (SDVG).

Hu and Zhang 2026, "Speculative Decoding for Autoregressive Video Generation".
"""

from __future__ import annotations

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from .base import block_rewards, check_frame_rule, routed


class RewardThresholdRule:
    """A block stands if the reward of its worst frame reaches τ, min_f r_f ≥ τ.

    What is no number stands nowhere. That the clip's first blocks are the target's is a matter of
    draft length: `ConstantLength(1, after=forced_blocks)` does not even ask for them.

    Args:
        tau: the threshold τ, on the reward's own scale; -inf accepts every reward, inf none that is
            finite.
        frame_rule: "worst", or "mean": of all frames of the block.

    Raises:
        InputError: there is no such frame rule.
    """

    contract: Contract = "lossy"
    local = True

    def __init__(self, tau: float, frame_rule: str = "worst") -> None:
        check_frame_rule(frame_rule)
        self.tau, self.frame_rule = tau, frame_rule

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes blocks of any law, one a row at most."""
        return routed(draft, block_rewards(scores, self.frame_rule) >= self.tau)
