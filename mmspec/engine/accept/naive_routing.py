"""The slow, obvious twins of the rules that route blocks of video, one clip at a time.

As in `naive`, a twin returns a law: of what stands, 1, and what falls, 0.
"""

from __future__ import annotations

import math

from .naive import Law


def reward_threshold_rule(frames: list[float], tau: float, frame_rule: str) -> Law:
    """SDVG, for one block: r = min_f r_f, or the mean; it stands if r ≥ τ."""
    return {(int(_reward(frames, frame_rule) >= tau),): 1.0}


def random_routing_rule(draft_share: float) -> Law:
    """One block stands with probability `draft_share`."""
    return {(1,): draft_share, (0,): 1 - draft_share}


def reward_rank_rule(blocks: list[list[float]], draft_share: float, frame_rule: str) -> Law:
    """The blocks of a clip one after the other: P(stands) = clip(share · (n + 1) − k, 0, 1)."""
    law: Law = {(): 1.0}
    seen: list[float] = []
    for frames in blocks:
        r = _reward(frames, frame_rule)
        k = sum(s > r for s in seen)  # above it, of the n before it
        chance = 0.0
        if not math.isnan(r):
            chance = min(1.0, max(0.0, draft_share * (len(seen) + 1) - k))
            seen.append(r)
        outcomes = (1, chance), (0, 1 - chance)
        law = {(*past, y): p * q for past, p in law.items() for y, q in outcomes if p * q > 0}
    return law


def reward_mean_rule(blocks: list[list[float]], wish: float, frame_rule: str) -> Law:
    """The blocks of a clip one after the other: one stands if the mean of those that stand, itself
    among them, is `wish` or more.
    """
    kept: list[float] = []
    stands = []
    for frames in blocks:
        more = [*kept, _reward(frames, frame_rule)]
        stands.append(int(sum(more) / len(more) >= wish))
        kept = more if stands[-1] else kept
    return {tuple(stands): 1.0}


def _reward(frames: list[float], frame_rule: str) -> float:
    if any(map(math.isnan, frames)):
        return math.nan
    return min(frames) if frame_rule == "worst" else sum(frames) / len(frames)
