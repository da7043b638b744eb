"""Helpers that declarations share."""

from __future__ import annotations

from typing import Any, Literal

from ..options import Options, option
from ..part import DraftOptions, Offers

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


class LivingOptions(DraftOptions):
    table_lives: bool | None = option(
        False,
        "the drafter's table lives on from call to call; what a seed draws then depends on the "
        "calls before; none: it does where decoding is greedy",
    )


def table_lives(options: LivingOptions, offers: Offers) -> bool:
    """True if the drafter of a generation begins with what earlier ones have learnt."""
    if options.table_lives is None:
        return "greedy" in offers and bool(offers["greedy"]())
    return options.table_lives


def living(name: str) -> Any:
    """An argument: what a pipeline offers that lives on from call to call, if it is to."""

    def taken(options: Any, offers: Offers) -> Any:
        return offers[name]() if name in offers and table_lives(options, offers) else None

    return taken


class NullOptions(DraftOptions):
    def first(self, stride: int) -> int:
        return 0
