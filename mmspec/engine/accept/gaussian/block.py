"""Block verification of normal laws: denoising steps are judged together (Sun et al. 2024)."""

from __future__ import annotations

import torch

from ...coins import RoundCoins
from ...draft import Draft, Scores, Verdict
from ...laws import Contract
from ..chain import pick, prefix_verdict
from .base import law_at, log_ratio, normal_laws, own_draw, plain_verdict
from .excess import race


class GaussianBlockRule:
    """Keep the longest prefix i of the chain whose coin says so; exact, never worse than in turn.

    With r_0 = 1 and r_i = min(1, r_{i−1} p_i(x_i) / q_i(x_i)), the coin of prefix i < γ shows
    R_i / (R_i + 1 − r_i), R_i = ∫ [r_i p_{i+1} − q_{i+1}]+, and h_γ = r_γ; see `BlockRule`. Then
    one vector is drawn from [r_i p_{i+1} − q_{i+1}]+, or from p after a whole draft. Coin and
    vector come from one race, so that nobody has to know R_i.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `Gaussian` laws."""
        if not draft.nodes:
            return plain_verdict(draft, scores, coins)
        p, q = normal_laws(draft, scores, "gaussian-block")
        live = draft.live()
        moved = torch.where(live, log_ratio(p, q, draft.tokens.double()), 0.0)
        total = moved.cumsum(1)  # [B, N]: log of the product of ratios
        r = (total - total.cummax(1).values.clamp_min(0)).exp()  # r_1 … r_N, at filling r_γ
        whole = coins.accept(r[:, -1:], draft.lengths.clamp_max(1))[:, 0] | (draft.lengths == 0)
        own = own_draw(law_at(scores.gaussian, draft.lengths), coins)
        weight = torch.cat([torch.ones_like(r[:, :1]), r[:, :-1]], dim=1)  # r_0 … r_{N−1}
        stands, value = race(p, q, weight, live & ~whole[:, None], coins, longest=True)
        place = torch.arange(draft.nodes, device=r.device)
        longest = (stands * place).amax(1)
        accepted = torch.where(whole, draft.lengths, longest)
        token = torch.where(whole[:, None], own, pick(value, longest))
        return prefix_verdict(draft, accepted, token.to(draft.tokens))
