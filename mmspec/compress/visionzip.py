"""VisionZip: the tokens that the tower looks at, and a summary of the rest (Yang et al. 2025).

Section 3. Published budgets are 54 + 10, 108 + 20 and 162 + 30 tokens: 10 of 64 are contextual.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from .base import Compressed, check, complement, take, top, wide


def visionzip(
    features: Tensor, keep: int, attention: Tensor, keys: Tensor, contextual: int | None = None
) -> Compressed:
    """Dominant tokens by attention; of the others every few-th takes in those most like it.

    A contextual token is its own feature plus the mean of those that joined it, as in the
    authors' release: a sum of two, not a mean, so `sizes` is None.

    Args:
        features: `[B, N, C]`, without a class token.
        keep: tokens K, both kinds together.
        attention: `[B, N]`, of the penultimate layer: from its class token, or where there is none
            the mean that each token gets.
        keys: `[B, N, K]`, of the same layer, mean over heads.
        contextual: how many of the K are contextual; None: the published share.

    Raises:
        InputError: the inputs don't fit each other, or more than K are to be contextual.
    """
    check(features, keep, attention, keys)
    merged = round(keep * 10 / 64) if contextual is None else contextual
    if not 0 <= merged <= keep:
        raise InputError(f"can't make {merged} of {keep} tokens contextual; pass 0 to {keep}")
    dominant = top(attention, keep - merged)
    if not merged:
        return Compressed.full(take(features, dominant), dominant)
    rest = complement(dominant, features.shape[1])
    slots = torch.arange(rest.shape[1], device=rest.device)
    step = rest.shape[1] // merged
    targets = slots[::step][:merged]
    joins = complement(targets[None], len(slots))[0]
    metric = F.normalize(take(wide(keys), rest), dim=-1)
    alike = metric[:, joins] @ metric[:, targets].transpose(1, 2)  # [B, J, M]
    joined = F.one_hot(alike.argmax(-1), merged).to(metric.dtype)
    others = take(wide(features), rest)
    mean = joined.transpose(1, 2) @ others[:, joins].to(metric.dtype)
    mean = mean / joined.sum(1).clamp_min(1)[..., None]
    context = (others[:, targets] + mean).to(features.dtype)
    index = torch.cat([dominant, rest[:, targets]], dim=1)
    order = index.argsort(dim=1)
    tokens = torch.cat([take(features, dominant), context], dim=1)
    return Compressed.full(take(tokens, order), index.gather(1, order))
