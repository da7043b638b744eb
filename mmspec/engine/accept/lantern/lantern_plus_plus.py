"""LANTERN++: the bound of what may be pooled is relative (Park et al. 2025)."""

from __future__ import annotations

from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from ..in_turn import verify_in_turn
from .pooling import check_lambda, checked, pool


class LanternPlusPlusRule:
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
        InputError: λ is below 1, or `neighbours` is no table of ids.
    """

    contract: Contract = "lossy"

    def __init__(self, neighbours: Tensor, lam: float) -> None:
        self.neighbours, self.lam = checked(neighbours), check_lambda(lam)

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes what `RecursiveRule` takes."""
        return verify_in_turn(draft, scores, coins, self)

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        """p̃(x)."""
        return pool(p, x, self.neighbours, (self.lam - 1) * p.gather(2, x).double()).credit

    def left(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """[p − q]+."""
        return (p - q).clamp_min(0)
