"""Block verification: the draft is judged as a whole (Sun et al. 2024, algorithm 2)."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract
from .chain import chain_laws, pick, prefix_verdict, ratios


class BlockRule:
    """Keep the longest prefix i of the chain whose coin says so; exact, and never worse than token.

    With r_0 = 1 and r_i = min(1, r_{i−1} p_i(x_i) / q_i(x_i)), the coin of prefix i < γ shows

        h_i = R_i / (R_i + 1 − r_i),  R_i = Σ_x [r_i p_{i+1}(x) − q_{i+1}(x)]+,  and h_γ = r_γ.

    Then one token is drawn from [r_i p_{i+1} − q_{i+1}]+, or from p after a whole draft.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws.

        For a one-hot draft block and token verification are the same law.
        """
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        p, q = scores.probs.double(), chain_laws(draft, "block")
        if q is None:
            q = F.one_hot(draft.tokens, p.shape[-1]).double()
        else:
            q = q.double()
            # a node whose law is no law is not drafted: the one in front of it is the last
            sound = (~q[..., 0].isnan()).cumprod(1).sum(1)
            draft = replace(draft, lengths=torch.minimum(draft.lengths, sound))
        moved = ratios(p, q, draft.tokens).log()
        total = moved.cumsum(1)  # [B, N]: log of the product of ratios
        r = (total - total.cummax(1).values.clamp_min(0)).exp()  # r_1 … r_N
        r = torch.cat([torch.ones_like(r[:, :1]), r], dim=1)  # r_0 … r_N

        live = draft.live()
        left = (r[:, :-1, None] * p[:, :-1] - q).clamp_min(0)  # [B, N, V], of prefixes 0 … N − 1
        # no law follows the row's last node: its filling says nothing
        mass = torch.where(live, left.sum(-1), 0.0)[:, 1:]
        short = 1 - r[:, 1:-1]
        h = torch.where(mass + short == 0, 1.0, mass / (mass + short))
        h = torch.cat([h, r[:, -1:]], dim=1)
        last = torch.arange(1, draft.nodes + 1, device=h.device) == draft.lengths[:, None]
        h = torch.where(last, r[:, 1:], h)
        ok = coins.accept(h, draft.lengths) & live
        place = torch.arange(1, draft.nodes + 1, device=h.device)
        accepted = (ok * place).amax(1)

        rest = pick(left, accepted.clamp_max(draft.nodes - 1))
        use = (accepted < draft.lengths) & (rest.sum(-1) > 0)
        weights = torch.where(use[:, None], rest, pick(p, accepted))
        return prefix_verdict(draft, accepted, coins.draw(weights))
