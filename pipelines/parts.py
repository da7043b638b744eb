"""Connect a pipeline of tokens to the parts of a method."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heapreplace
from typing import Any, get_args

import torch.nn.functional as F
from torch import Tensor

from ..draft.feature.feature_model import EagleDrafter, FeatureModel
from ..draft.guarded import GuardedDrafter
from ..draft.nested import NestedDrafter
from ..draft.self_speculation import SelfDrafter
from ..engine.accept.restricted import RestrictedRule
from ..engine.laws import Contract
from ..engine.length.guard import GuardedLength
from ..engine.protocols import AcceptanceRule, Engine, Target
from ..engine.stats import SpecStats
from ..errors import InputError
from ..methods.part import Offers
from ..models.codebook_neighbours import Neighbours
from ..models.guided import GuidedDecoder
from ..models.pruning import Pruning
from ..models.target import TokenTarget
from ..models.token_grid import TokenGrid
from ..models.token_model import TokenModel
from ..models.transformers.causal import CausalDecoder
from ..models.transformers.processed_laws import ProcessedTarget
from ..registry import resolve_own
from .costs import Costs
from .notices import Notices


def token_offers(
    target: GuidedDecoder,
    model: TokenModel | None,
    vocab_size: int,
    grid: TokenGrid,
    **more: Callable[[], Any],
) -> Offers:
    """Offers for drafters, rules and length policies of token ids.

    Args:
        target: the network that is to be sped up; some drafters run a part of it.
        model: the draft model of those that need one, or a draft head.
        grid: the picture's tokens; of text, one row.
        more: what else there is, such as `codebook`, `experience`, `prompt` or `scaled_up`.
    """
    if isinstance(model, GuidedDecoder):
        model.drafts = True
    offers: dict[str, Callable[[], Any]] = {
        "target": lambda: target,
        "model": lambda: model,
        "vocab_size": lambda: vocab_size,
        "grid": lambda: grid,
        "stride": lambda: grid.stride,
        **more,
    }
    if "codebook" in more:
        offers["codebook"] = lambda: token_vectors(more["codebook"](), vocab_size)
    if isinstance(model, FeatureModel):
        offers["feed"] = lambda: partial(EagleDrafter, model)
    return offers


def token_vectors(codes: Tensor | None, vocab_size: int) -> Tensor | None:
    """Vectors `[V, C]` of all tokens: those of the codes, and NaN for what a layout forces."""
    if codes is None:
        return None
    return F.pad(codes, (0, 0, 0, vocab_size - len(codes)), value=math.nan)


def nearest_codes(
    codebook: Callable[[], Tensor | None], near: Neighbours | None = None
) -> Callable[[int], Tensor]:
    """Function from a count k to the table of every code's nearest codes `[V, k]`.

    `codebook` gives the vectors of the codes `[V, C]`, or None, and `near` holds the table.
    """

    def table(count: int) -> Tensor:
        codes = codebook()
        if codes is None:
            raise InputError("this rule pools the nearest codes, and this model has none")
        return (near or Neighbours())(codes, min(count, len(codes) - 1))

    return table


def own_rule(reference: str) -> AcceptanceRule:
    """A rule of the user's own, a class without arguments, named as "module:Class"."""
    made, contracts = resolve_own("rule", reference), get_args(Contract)
    try:
        rule: AcceptanceRule = made()
    except TypeError as error:
        raise InputError(
            f"rule {reference!r} must be a class without arguments: {error}"
        ) from error
    if not callable(getattr(rule, "verify", None)) or (
        getattr(rule, "contract", None) not in contracts
    ):
        raise InputError(
            f"rule {reference!r} is no acceptance rule: it needs verify(draft, scores, coins) and "
            f"a contract, {' or '.join(contracts)}"
        )
    return rule


def pruning(target: Target, rule: AcceptanceRule) -> Target:
    """The target, which prunes drafts if the rule goes by its first layers.

    Raises:
        InputError: it can't run a part of its layers, or others look at what it reads.
    """
    if not (isinstance(rule, RestrictedRule) and isinstance(target, TokenTarget)):
        return target
    if isinstance(target, ProcessedTarget) and (target.law.looks or target.law.keeps):
        raise InputError(
            "rule 'restricted' leaves pruned tokens unread, and here a logits processor or "
            "output_scores looks at all of them; use 'token'"
        )
    if isinstance(target.model.decoder, CausalDecoder):
        target.model.decoder.blocks()  # they must be known to run a part of them
    target.pruning = Pruning(rule.layers, rule.least, target.model.layers)
    return target


def finish(
    engine: Engine,
    stats: SpecStats,
    costs: Costs,
    notices: Notices,
    whole: bool,
    at_once: int | None = None,
) -> None:
    """Complete the counters; say so if speculation did not pay, unless a guard saw to that.

    Nothing is said of a call that was cut short.

    `at_once` samples had a row at a time; None: all.
    """
    guard = engine.drafter
    if isinstance(guard, GuardedDrafter):
        stats.fault = guard.fault
        if isinstance(guard.drafter, SelfDrafter):
            stats.own_drafts = guard.drafter.share
        if isinstance(guard.drafter, NestedDrafter):
            stats.inner = guard.drafter.stats
        if isinstance(engine.target, TokenTarget) and engine.target.pruning is not None:
            stats.pruned = [engine.target.pruning.run, engine.target.pruning.whole]
        told = whole and stats.emitted and not isinstance(engine.length, GuardedLength)
        if told and isinstance(engine.target, TokenTarget):
            # at most: rows that are over would not have run to the end
            rounds = _plain_rounds(stats.emitted, at_once or len(stats.emitted))
            notices.check(stats, rounds * costs.call(engine.target.model))


def _plain_rounds(tokens: Sequence[int], rows: int) -> int:
    """Calls that plain decoding takes for samples of so many tokens, in so many rows."""
    ends = [0] * rows
    for count in tokens:
        heapreplace(ends, ends[0] + count)
    return max(ends)
