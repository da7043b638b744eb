"""Helpers that declarations share."""

from __future__ import annotations

from typing import Any, Literal

from ..options import Options, option
from ..part import DraftOptions

Siblings = Literal["without-replacement", "independent", "top"]
CHAIN: Any = dict(depth="num_draft_tokens", knob="num_draft_tokens")  # of drafters of chains
ONE_LAW: Any = dict(one_law=lambda options: True)  # and of those whose nodes have one law


class ChainOptions(DraftOptions):
    num_draft_tokens: int = option(
        4, "how many are drafted before the target checks", 1, 64, limits=("depth",)
    )


class SiblingsOptions(DraftOptions):
    siblings: Siblings = option("without-replacement", "how a node's children come about")


class NearestOptions(Options):
    neighbours: int = option(
        20, "like tokens that count together; more is faster and further off", 0, 65536
    )


class NullOptions(DraftOptions):
    def first(self, stride: int) -> int:
        return 0
