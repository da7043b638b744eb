"""What a pipeline of tokens offers to the parts of a method, each made when a part asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ..draft.draft_model import TokenModel
from ..draft.feature.feature_model import EagleDrafter, FeatureModel
from ..errors import InputError
from ..methods.part import Offers
from ..models.codebook_neighbours import Neighbours
from ..models.guided import GuidedDecoder
from ..models.token_grid import TokenGrid


def token_offers(
    target: GuidedDecoder,
    model: TokenModel | None,
    vocab_size: int,
    grid: TokenGrid,
    **more: Callable[[], Any],
) -> Offers:
    """What there is for drafters, rules and length policies of token ids.

    Args:
        target: the network that is to be sped up; some drafters run a part of it.
        model: the draft model of those that need one, or a draft head.
        vocab_size: V.
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
    if isinstance(model, FeatureModel):
        offers["feed"] = lambda: partial(EagleDrafter, model)
    return offers


def nearest_codes(
    codebook: Callable[[], Tensor | None], near: Neighbours | None = None
) -> Callable[[int], Tensor]:
    """The table of every code's nearest codes `[V, k]`, of a count k.

    Args:
        codebook: gives the vectors of the codes `[V, C]`; None: there are none.
        near: holds the table.
    """

    def table(count: int) -> Tensor:
        codes = codebook()
        if codes is None:
            raise InputError("this rule pools the nearest codes, and this model has none")
        return (near or Neighbours())(codes, min(count, len(codes) - 1))

    return table
