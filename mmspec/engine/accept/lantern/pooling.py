"""A token's probability pooled with that of its nearest codes: what the LANTERN rules share."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import InputError


@dataclass
class Pool:
    """The neighbours whose probability is counted as the token's own.

    Attributes:
        ids: all k neighbours, nearest first `[B, S, k]`.
        inside: the first m of them, which are pooled `[B, S, k]`.
        credit: p(x) + Σ_{i≤m} p(n_i) in float64 `[B, S, 1]`.
    """

    ids: Tensor
    inside: Tensor
    credit: Tensor


def pool(
    p: Tensor, x: Tensor, neighbours: Tensor, bound: float | Tensor, impossible: bool = False
) -> Pool:
    """The longest prefix of neighbours with Σ_{i≤m} p(n_i) ≤ bound.

    A token of probability 0 has an empty pool, and so is never kept; so has an id beyond the table,
    such as a grid token's.

    Args:
        p: laws `[B, S, V]`.
        x: tokens `[B, S, 1]`.
        neighbours: ids `[C, k]` of the codes nearest to each of the codes 0 … C − 1, C ≤ V.
        bound: most mass that may be pooled; a number or `[B, S, 1]`.
        impossible: a token of probability 0 has a pool as well.
    """
    ids = neighbours[x.squeeze(2).clamp_max(len(neighbours) - 1)]
    own = p.gather(2, x).double()
    mass = p.gather(2, ids).double()
    may = x < len(neighbours) if impossible else (own > 0) & (x < len(neighbours))
    # sums made in parallel may round up and down: once beyond the bound is beyond it for good
    inside = (may & (mass.cumsum(-1) <= bound)).cumprod(-1).bool()
    return Pool(ids, inside, own + torch.where(inside, mass, 0.0).sum(-1, keepdim=True))


def checked(neighbours: Tensor) -> Tensor:
    """The table itself.

    Raises:
        InputError: it is no table `[C, k]` of ids.
    """
    if neighbours.ndim != 2 or neighbours.dtype != torch.long or not len(neighbours):
        raise InputError(
            "neighbours must be a table of token ids [codes, k] as nearest_codes makes it, not "
            f"{neighbours.dtype} of shape {list(neighbours.shape)}"
        )
    return neighbours


def check_delta(delta: float) -> float:
    """δ itself.

    Raises:
        InputError: it is outside [0, 1].
    """
    if not 0 <= delta <= 1:
        raise InputError(f"LANTERN's delta is pooled probability, 0 to 1, not {delta}")
    return delta


def check_lambda(lam: float) -> float:
    """λ itself.

    Raises:
        InputError: it is below 1.
    """
    if not 1 <= lam < math.inf:
        raise InputError(f"LANTERN++'s lambda is a factor of 1 or more, not {lam}")
    return lam
