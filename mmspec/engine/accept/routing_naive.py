"""The slow, obvious twins of the rules that route blocks of video, one clip at a time.

As in `naive`, a twin returns a law: of what stands, 1, and what falls, 0.
"""

from __future__ import annotations

import math

from .naive import Law
from .routing import PATIENCE


def reward_threshold_rule(frames: list[float], tau: float, frame_rule: str) -> Law:
    """SDVG, for one block: r = min_f r_f, or the mean; it stands if r ≥ τ."""
    return {(int(_reward(frames, frame_rule) >= tau),): 1.0}


def advantage_rule(frames: list[float], tau: float) -> Law:
    """Arbitrage, for one block: it falls if the mean advantage A > τ, or is no number."""
    return {(int(_reward(frames, "mean") <= tau),): 1.0}


def random_routing_rule(draft_share: float) -> Law:
    """Keep one block with probability `draft_share`."""
    return {(1,): draft_share, (0,): 1 - draft_share}


def reward_rank_rule(blocks: list[list[float]], draft_share: float, frame_rule: str) -> Law:
    """The blocks of a clip one after the other: P(stands) = clip(s · (n + 1) − k, 0, 1).

    k is drawn among the places that equal rewards leave; s is the share, and what is owed over
    `PATIENCE`.
    """
    law: Law = {(): 1.0}
    for number, frames in enumerate(blocks):
        r = _reward(frames, frame_rule)
        before = [_reward(block, frame_rule) for block in blocks[:number]]
        seen = [(place, s) for place, s in enumerate(before) if not math.isnan(s)]
        least, most = (sum(s > r for _, s in seen), sum(s >= r for _, s in seen))
        longer: Law = {}
        for past, p in law.items():
            share = draft_share + sum(draft_share - past[place] for place, _ in seen) / PATIENCE
            chances = [
                min(1.0, max(0.0, share * (len(seen) + 1) - k)) for k in range(least, most + 1)
            ]
            chance = 0.0 if math.isnan(r) else sum(chances) / len(chances)
            longer |= {(*past, y): p * q for y, q in ((1, chance), (0, 1 - chance)) if p * q > 0}
        law = longer
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
