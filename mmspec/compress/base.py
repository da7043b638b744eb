"""Inputs and outputs that all compressors share.

B images, N visual tokens each, C channels, K ≤ N tokens left. Compressors are pure functions of
features and attention, without chance, row by row. Kept tokens stay in the order in which they
stood, so that position ids can follow; of equal scores the one that stands first wins. Half
precision is computed in float32 and cast back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import InputError
from ..methods.registry import COMPRESSORS


@dataclass(frozen=True)
class Compressed:
    """Fewer visual tokens.

    Attributes:
        features: `[B, K, C]`, of the input's dtype; zero where `mask` is False.
        index: `[B, K]`, where in the original order each token stood (a merged one: the token that
            the others joined), ascending; 0 where `mask` is False.
        mask: `[B, K]`, False where a row has fewer tokens than the longest one.
        sizes: `[B, K]`, tokens in each group, where outputs are means of disjoint groups.
    """

    features: Tensor
    index: Tensor
    mask: Tensor
    sizes: Tensor | None = None

    @classmethod
    def full(cls, features: Tensor, index: Tensor, sizes: Tensor | None = None) -> Compressed:
        """Make one with as many tokens in every row."""
        return cls(features, index, torch.ones_like(index, dtype=torch.bool), sizes)


def compress(
    name: str,
    features: Tensor,
    keep: int | None = None,
    *,
    attention: Tensor | None = None,
    keys: Tensor | None = None,
    grid: tuple[int, int] | None = None,
) -> Compressed:
    """Compress visual tokens by the method called `name`; it ignores what it has no use for.

    Args:
        features: `[B, N, C]`.
        keep: tokens K left; None: the method chooses.
        attention: `[B, N]`.
        keys: `[B, N, K]`.
        grid: rows and columns of the tokens; None: a square.

    Raises:
        InputError: no such method, something it needs is missing, or the inputs don't fit.
    """
    chosen = COMPRESSORS.get(name)
    given = {"attention": attention, "keys": keys, "grid": grid}
    inputs = {key: given[key] for key in chosen.uses}
    missing = [key for key in chosen.needs if given[key] is None]
    if missing:
        raise InputError(f"compressor {name!r} needs {' and '.join(missing)}; pass them too")
    if keep is None and not chosen.adaptive:
        raise InputError(f"compressor {name!r} doesn't choose how many tokens stay; pass keep")
    return chosen.load()(features, keep, **inputs)


def check(
    features: Tensor, keep: int, attention: Tensor | None = None, keys: Tensor | None = None
) -> None:
    """Refuse inputs that don't fit each other.

    Raises:
        InputError: a shape is wrong, or `keep` is no number of tokens from 1 to N.
    """
    if features.ndim != 3:
        raise InputError(f"visual features have shape {_shape(features)}; pass [images, tokens, C]")
    rows, tokens = features.shape[:2]
    if type(keep) is not int or not 1 <= keep <= tokens:
        raise InputError(f"can't keep {keep!r} of {tokens} visual tokens; pass 1 to {tokens}")
    if attention is not None and attention.shape != (rows, tokens):
        raise InputError(f"attention has shape {_shape(attention)}; pass ({rows}, {tokens})")
    if keys is not None and (keys.ndim != 3 or keys.shape[:2] != (rows, tokens)):
        raise InputError(f"keys have shape {_shape(keys)}; pass ({rows}, {tokens}, K)")


def wide(x: Tensor) -> Tensor:
    """Convert to float32, unless it is wider already."""
    return x if x.dtype == torch.float64 else x.float()


def ranking(scores: Tensor) -> Tensor:
    """Places along the last axis from highest to lowest score, equal ones as they stand."""
    return scores.argsort(dim=-1, descending=True, stable=True)


def top(scores: Tensor, keep: int) -> Tensor:
    """Places of the `keep` highest scores `[B, N]`, ascending, `[B, keep]`."""
    return ranking(scores)[:, :keep].sort(dim=1).values


def complement(index: Tensor, tokens: int) -> Tensor:
    """The places among `tokens` that are not in `index [B, K]`, ascending, `[B, tokens - K]`."""
    taken = torch.zeros(len(index), tokens, dtype=torch.bool, device=index.device)
    taken.scatter_(1, index, True)
    return taken.long().argsort(dim=1, stable=True)[:, : tokens - index.shape[1]]


def take(x: Tensor, index: Tensor) -> Tensor:
    """`x [B, N, C]` at `index [B, K]`, `[B, K, C]`."""
    return x.gather(1, index[..., None].expand(-1, -1, x.shape[-1]))


def _shape(x: Tensor) -> str:
    return str(tuple(x.shape))
