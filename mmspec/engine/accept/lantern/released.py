"""LANTERN and LANTERN++ as the authors released them (github.com/jadohu/LANTERN).

For figures published with it; `LanternRule` and `LanternPlusPlusRule` are as printed.
"""

from __future__ import annotations

from torch import Tensor

from ....errors import InputError
from ...laws import Contract
from ..in_turn import SiblingRule
from .lantern import checked, pool


class ReleasedLanternRule(SiblingRule):
    """Recursive rejection with the relaxed test of the released `evaluate_posterior`, sampled.

    Child x, drawn from q, stands with probability min(1, p̃(x) / q(x)), where

        p̃(x) = p(x) + Σ_{i≤m} p(n_i),  m ≤ k the largest with Σ_{i≤m} p(n_i) ≤ bound,

    the bound is δ (LANTERN) or (λ − 1) p(x) (LANTERN++), and n_1, n_2, … are the codes nearest to
    x. It differs from the papers' rules in this:

    - a token of p(x) = 0 is credited with its neighbours too, and so may be emitted;
    - after a fall with m ≥ 1 all of the k + 1 nearest codes n_1 … n_{k+1} are emptied, also those
      that were not pooled: in p, which becomes p without x and them, if x was chosen (q(x) = 1, a
      dynamic tree); in q, before p becomes [p − q]+, if it was drawn (a static tree);
    - where nothing is left, every code is as likely as any other;
    - a sibling that is drafted again is passed over.

    Nothing bounds how far the emitted law is from p, and with δ = 0 or λ = 1 the rule is not exact:
    neighbours of probability 0 are pooled, and what is emptied with them is lost.

    Args:
        neighbours: `[C, K]`, see `LanternRule`, K = k + 1, or fewer: C − 1 at most.
        k: neighbours that may be pooled.
        delta, lam: δ in [0, 1]; None: λ ≥ 1 in its place.
        temperature: of the warpers.

    Raises:
        InputError: the temperature is 0, or `neighbours` is no table of ids.
    """

    contract: Contract = "lossy"

    def __init__(
        self,
        neighbours: Tensor,
        k: int,
        delta: float | None = None,
        lam: float = 1.0,
        temperature: float = 1.0,
    ) -> None:
        if temperature == 0:
            raise InputError(
                "lantern_variant 'released' samples: at temperature 0 take 'paper', which is greedy"
            )
        self.delta, self.lam = delta, lam
        self.near, self.emptied = checked(neighbours)[:, :k], neighbours[:, : k + 1]

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        return pool(p, x, self.near, self._bound(p, x), impossible=True).credit

    def left(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """p or q emptied around x, and p − q of them; all codes alike where nothing is left."""
        relaxed = pool(p, x, self.near, self._bound(p, x), impossible=True).inside.any(-1, True)
        ids = self.emptied[x.squeeze(2).clamp_max(len(self.emptied) - 1)]
        chosen = q.gather(2, x) == 1

        def emptied(law: Tensor, where: Tensor) -> Tensor:
            return law.scatter(2, ids, law.gather(2, ids).masked_fill(where, 0.0))

        left = (emptied(p, relaxed & chosen) - emptied(q, relaxed & ~chosen)).clamp_min(0)
        left[..., : len(self.near)] += (left.sum(-1, keepdim=True) <= 0).to(left)
        return left.where(q.gather(2, x) > 0, p)

    def _bound(self, p: Tensor, x: Tensor) -> float | Tensor:
        return self.delta if self.delta is not None else (self.lam - 1) * p.gather(2, x).double()
