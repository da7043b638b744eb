"""Options of rules that route: blocks of video, and steps of text."""

from __future__ import annotations

from ..options import Options, option

ROUTER = "router"  # guesses how good a draft is
ADVANTAGE_ROUTER = "advantage_router"  # guesses where the target does better
ROUTERS = (ROUTER, ADVANTAGE_ROUTER)


class AdvantageOptions(Options):
    advantage_tau: float = option(
        0.5, "how likely the target must do better to make a block or a step; more is faster", 0, 1
    )


class GainOptions(Options):
    gain_tau: float = option(
        0.0, "by how much a reward must prefer what the target makes to the draft for it to stand"
    )


class ShareOptions(Options):
    draft_share: float = option(
        0.5, "part of the drafted blocks or steps that is to stand; more is faster", 0, 1
    )
