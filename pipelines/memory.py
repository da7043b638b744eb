"""Memory that drafts add to a generation, and drafts that fit a budget of it."""

from __future__ import annotations

from ..methods import ResolvedConfig
from ..methods.draft_size import DraftSize
from ..methods.memory_budget import BUDGET, fitted
from ..models.guided import GuidedDecoder
from ..models.rounded_copy import RoundedCopy

_LAW = 4  # bytes of a probability: laws are float32 at least


def within_budget(
    config: ResolvedConfig,
    target: GuidedDecoder,
    model: GuidedDecoder | None,
    vocab_size: int,
    stride: int = 1,
    rounded: RoundedCopy | None = None,
    beyond: int = 0,
) -> ResolvedConfig:
    """The configuration with drafts that its memory budget has room for; networks reserve for them.

    What drafts add are keys and values of drafted tokens in the target's cache, all that the cache
    of a draft model holds, and laws: of the target and of its first layers, if the rule asks them,
    for every node, and of the drafter for every drawn one. Weights are not counted, nor what a call
    needs for itself while it runs, nor states and laws that a drafter keeps.

    Args:
        config: what somebody asked for.
        target, model: networks of the generation, before it starts.
        vocab_size: V.
        stride: positions in a row of the picture.
        rounded: the target on rounded weights, which writes to the target's cache.
        beyond: tokens that a block of the draft model may be longer than a draft.

    Raises:
        InputError: not even the smallest draft fits.
    """
    if config.options.get(BUDGET.name) is None:
        return config
    of_target = target.cache_bytes(1)  # plain decoding reads a token a call, too
    law = target.running.rows * vocab_size * max(_LAW, target.prefix.element_size())

    def takes(size: DraftSize) -> int:
        scratch = size.most_read + beyond
        keys = target.cache_bytes(scratch) - of_target
        keys += 0 if model is None else model.cache_bytes(scratch)
        judged = size.most_drafted * (2 if config.rule.early else 1)
        return keys + law * (judged + size.most_drawn)

    made = fitted(config, takes, stride)
    if made is not config:
        scratch = made.draft_size(stride).most_read + beyond
        for network in filter(None, (target, model, rounded)):
            network.reserve(scratch)
    return made
