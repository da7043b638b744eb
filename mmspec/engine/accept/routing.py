"""Rules that route blocks of video and steps of text: a drafted one stands, or the target makes its
own.

`RewardThresholdRule` is that of Hu and Zhang 2026, "Speculative Decoding for Autoregressive Video
Generation" (SDVG), and of reward-guided decoding of text; in two others its threshold adapts
itself; `AdvantageRule` looks at what is won by asking the target, as Arbitrage does; and chance is
what all of them have to beat at the same share.

A block is one node of a draft, and so its tokens are blocks. A step is all nodes of a chain of
tokens. Either way a draft is one unit that stands or falls as a whole, and scores are of the unit.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract

PATIENCE = 4.0  # drafts over which what stood too often, or too rarely, is made up for


def block_rewards(scores: Scores, frame_rule: str) -> Tensor:
    """The reward of every unit `[B, U]`: of its "worst" frame, or "mean"; NaN if a frame's is.

    U is 1, or 0 where no row has a draft. A step has one frame.

    Raises:
        ContractError: nobody was asked for rewards.
    """
    frames = scores.rewards
    if not frames.shape[1]:
        return frames.new_zeros(frames.shape[:2])
    return frames.amin(-1) if frame_rule == "worst" else frames.mean(-1)


def drafted(draft: Draft) -> Tensor:
    """True for rows `[B, U]` that have a draft."""
    return (draft.lengths > 0)[:, None].expand(-1, min(1, draft.nodes))


def routed(draft: Draft, stands: Tensor) -> Verdict:
    """Units stand where `stands [B, U]` says; the target makes the others, and says how long."""
    tokens, keep = draft.tokens, stands & draft.live()
    rows, nodes, *shape = tokens.shape
    emitted = tokens if nodes else tokens.new_zeros(rows, 1, *shape)  # for the target to fill
    counts = draft.lengths.clamp_min(1)
    at = (counts - 1).view(-1, *[1] * (emitted.ndim - 1)).expand(-1, 1, *shape)
    return Verdict(keep.sum(1), emitted, emitted.gather(1, at), counts, keep=keep)


class RoutingRule:
    """Base of the rules that route units; takes drafts of any law."""

    contract: Contract = "lossy"
    local = True


class RewardThresholdRule(RoutingRule):
    """A unit stands if the reward of its worst frame reaches τ, min_f r_f ≥ τ.

    What is no number stands nowhere. That the clip's first blocks are the target's is a matter of
    draft length: `ConstantLength(1, after=forced_blocks)` does not even ask for them.

    Args:
        tau: the threshold τ, on the reward's own scale; -inf accepts every reward, inf none that is
            finite.
        frame_rule: "worst", or "mean": of all frames of the block.
    """

    def __init__(self, tau: float, frame_rule: str = "worst") -> None:
        self.tau, self.frame_rule = tau, frame_rule

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        return routed(draft, block_rewards(scores, self.frame_rule) >= self.tau)


class RewardRankRule(RoutingRule):
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
    """

    def __init__(self, draft_share: float, frame_rule: str = "worst") -> None:
        self.draft_share, self.frame_rule = draft_share, frame_rule
        self.seen: Tensor | None = None
        self.owed: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        rewards = block_rewards(scores, self.frame_rule)
        rewards = rewards.masked_fill(~drafted(draft), torch.nan)
        seen = rewards[:, :0] if self.seen is None else self.seen
        owed = rewards.new_zeros(len(rewards)).double() if self.owed is None else self.owed
        better = (seen[:, None] > rewards[..., None]).sum(-1)
        equal = (seen[:, None] == rewards[..., None]).sum(-1)
        known = (~seen.isnan()).sum(1, keepdim=True)
        share = self.draft_share + owed[:, None] / PATIENCE
        above = (share * (known + 1) - better).clamp_min(0)
        chance = above.minimum(equal + 1) / (equal + 1)  # mean over where the lot puts it
        judged = ~rewards.isnan()
        stands = coins.accept(chance.masked_fill(~judged, 0), draft.lengths.clamp_max(1))
        self.seen = torch.cat([seen, rewards], dim=1)
        self.owed = owed + (judged * (self.draft_share - stands.double())).sum(1)
        return routed(draft, stands)


class RewardMeanRule(RoutingRule):
    """Keeps drafts of a clip whose mean reward is at least the wished one, at every moment.

    With n of the clip standing, whose rewards sum up to R, the next stands if its own reaches
    (n + 1) · wish − R: better ones before it make up for a worse one. What is no number stands
    nowhere.

    Args:
        wish: the mean that is wished, on the reward's own scale.
        frame_rule: whose reward a block's is, see `block_rewards`.

    Attributes:
        stood: rewards of each row's drafts so far `[B, n]`, NaN where a draft did not stand; what
            the rule needs to go on.
    """

    def __init__(self, wish: float, frame_rule: str = "worst") -> None:
        self.wish, self.frame_rule = wish, frame_rule
        self.stood: Tensor | None = None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        rewards = block_rewards(scores, self.frame_rule)
        stood = rewards[:, :0] if self.stood is None else self.stood
        above = (stood - self.wish).nansum(1, keepdim=True)
        stands = drafted(draft) & (rewards - self.wish + above >= 0)
        self.stood = torch.cat([stood, rewards.masked_fill(~stands, torch.nan)], dim=1)
        return routed(draft, stands)


class AdvantageRule(RoutingRule):
    """A unit stands unless the target would do better by more than τ: unless A > τ (Arbitrage).

    A is the mean over a block's frames, or a step's only one, of what the scores hold: a router's
    P(target better), or the difference of the target's reward and the draft's. An absolute
    threshold asks the target again and again where both models fail; this one asks where asking
    pays. At a given share of asked units, the true difference wins most for those at hand; later
    ones depend on what stood, so that nothing is said of whole clips or texts. What is no number
    stands nowhere. With τ = 0 and a router, whose P is above 0, all units are the target's.

    Args:
        advantage_tau: the threshold τ.
    """

    def __init__(self, advantage_tau: float) -> None:
        self.advantage_tau = advantage_tau

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        return routed(draft, block_rewards(scores, "mean") <= self.advantage_tau)


class RandomRoutingRule(RoutingRule):
    """A unit stands with probability `draft_share`, whatever it shows."""

    def __init__(self, draft_share: float) -> None:
        self.draft_share = draft_share

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        chance = torch.full_like(drafted(draft), self.draft_share, dtype=torch.float64)
        return routed(draft, coins.accept(chance, draft.lengths.clamp_max(1)))
