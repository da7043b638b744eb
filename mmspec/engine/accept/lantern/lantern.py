"""LANTERN: relaxed acceptance over neighbours in the codebook (Jang et al. 2024, section 4)."""

from __future__ import annotations

from torch import Tensor

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from ..in_turn import verify_in_turn
from .pooling import check_delta, checked, pool


class LanternRule:
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
        InputError: δ is outside [0, 1], or `neighbours` is no table of ids.
    """

    contract: Contract = "lossy"

    def __init__(self, neighbours: Tensor, delta: float) -> None:
        self.neighbours, self.delta = checked(neighbours), check_delta(delta)

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes what `RecursiveRule` takes."""
        return verify_in_turn(draft, scores, coins, self)

    def credit(self, p: Tensor, x: Tensor) -> Tensor:
        """p̃(x)."""
        return pool(p, x, self.neighbours, self.delta).credit

    def left(self, p: Tensor, q: Tensor, x: Tensor) -> Tensor:
        """[p − q]+, and 0 for the pooled neighbours of a token that was chosen."""
        left = (p - q).clamp_min(0)
        pooled = pool(p, x, self.neighbours, self.delta)
        used = pooled.inside & (q.gather(2, x) == 1)
        return left.scatter_(2, pooled.ids, left.gather(2, pooled.ids).masked_fill(used, 0.0))
