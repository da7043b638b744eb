"""What declarations share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from ..options import option
from ..part import DraftOptions

Siblings = Literal["without-replacement", "independent", "top"]
CHAIN: Any = dict(depth="num_draft_tokens", knob="num_draft_tokens")  # of drafters of chains
ONE_LAW: Any = dict(one_law=lambda options: True)  # and of those whose nodes have one law


def needs_drafter(options: Any) -> tuple[str, ...]:
    """The component of those that have a draft model."""
    return ("drafter",)


@dataclass(frozen=True)
class ChainOptions(DraftOptions):
    """Of chains."""

    num_draft_tokens: int = option(4, "how many are drafted before the target checks", 1, 64)


@dataclass(frozen=True)
class SiblingsOptions(DraftOptions):
    """Of those whose tokens are drawn or chosen."""

    siblings: Siblings = option("without-replacement", "how a node's children come about")


@dataclass(frozen=True)
class NearestOptions:
    """Of rules that pool like tokens."""

    neighbours: int = option(
        20, "like tokens that count together; more is faster and further off", 0, 65536
    )


@dataclass(frozen=True)
class NullOptions(DraftOptions):
    """Of drafters that draft nothing in front of a judge."""

    def first(self, stride: int) -> int:
        return 0
