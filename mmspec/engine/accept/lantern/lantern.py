"""LANTERN and LANTERN++: a token's probability is pooled with that of its nearest codes.

Jang et al. 2024, section 4; Park et al. 2025, whose bound of what may be pooled is relative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ....errors import InputError
from ...laws import Contract
from ..in_turn import SiblingRule


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


class LanternRule(SiblingRule):
    """Recursive rejection in which a token is credited with its neighbours' probability too.

    Child x, drawn from q, stands with probability min(1, p̃(x) / q(x)), where

        p̃(x) = p(x) + Σ_{i≤m} p(n_i),  m the largest with Σ_{i≤m} p(n_i) ≤ δ,

    n_1, n_2, … are the codes nearest to x, and p̃(x) = 0 where p(x) = 0. After a fall the next
    child, or the draw, is up against

    - norm([p − q]+) if x was drawn. Tokens with q > p are emitted too often already, the others not
      often enough by (p − q): no residual comes closer to p. It is also norm([p − f q]+) with f the
      probability to stand.
    - p without x and the n_1 … n_m that were pooled, normalized, if x was chosen (q(x) = 1, as in
      LANTERN's dynamic trees). So the mass that x gains is its pooled neighbours' alone.

    How far the emitted token's law is from p (total variation), for any draft: at most
    1 − (1 − δ)^K with K chosen siblings, which is δ for one; with drawn siblings at most
    TV(p, q), whatever δ is. With δ = 0 the rule is exact. A one-hot p stays as it is.

    The authors' released code differs: it credits a token of p(x) = 0 with its neighbours too, and
    after a fall it empties all of the k + 1 nearest codes, pooled or not: `ReleasedLanternRule`.

    Args:
        neighbours: `[C, k]`, the codes nearest to each code, nearest first, itself excluded
            (`nearest_codes`). Ids from C on, such as grid tokens, have none.
        delta: δ in [0, 1], the most mass that may be pooled. The paper takes 0.1–0.2 with k = 1000.

    Raises:
        InputError: `neighbours` is no table of ids.
    """

    contract: Contract = "lossy"

    def __init__(self, neighbours: Tensor, delta: float) -> None:
        self.neighbours, self.delta = checked(neighbours), delta

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        return pool(p, x, self.neighbours, self.delta).credit

    def left(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """[p − q]+, and 0 for the pooled neighbours of a token that was chosen."""
        left = (p - q).clamp_min(0)
        pooled = pool(p, x, self.neighbours, self.delta)
        used = pooled.inside & (q.gather(2, x) == 1)
        return left.scatter_(2, pooled.ids, left.gather(2, pooled.ids).masked_fill(used, 0.0))


class LanternPlusPlusRule(SiblingRule):
    """Recursive rejection in which a token counts for up to λ times its probability.

    Child x, drawn from q, stands with probability min(1, p̃(x) / q(x)), where

        p̃(x) = p(x) + Σ_{i≤m} p(n_i),  m the largest with Σ_{i≤m} p(n_i) ≤ (λ − 1) p(x),

    and n_1, n_2, … are the codes nearest to x; after a fall p becomes norm([p − q]+). Made for
    static trees, and good for chains.

    The emitted token's law is nowhere above λ p, whatever the draft and however many siblings, and
    so its total variation from p is at most 1 − 1/λ. (One turn: if q(x) > p(x), x is emitted with
    min(q, p̃) ≤ λ p and never again; other tokens get q, and a share of at most (p − q) times what
    the later turns make of it, λ at most.) With λ = 1 the rule is exact. A one-hot p stays as
    it is.

    The authors' released code differs: where (λ − 1) p(x) pools a neighbour, be it one of
    probability 0, the q that is taken off after a fall is 0 at all of the k + 1 nearest codes:
    `ReleasedLanternRule`.

    Args:
        neighbours: `[C, k]`, see `LanternRule`. The paper takes k = 5 … 10.
        lam: λ ≥ 1. The paper takes 5 … 20.

    Raises:
        InputError: `neighbours` is no table of ids.
    """

    contract: Contract = "lossy"

    def __init__(self, neighbours: Tensor, lam: float) -> None:
        self.neighbours, self.lam = checked(neighbours), lam

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        return pool(p, x, self.neighbours, (self.lam - 1) * p.gather(2, x).double()).credit
