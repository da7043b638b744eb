"""Annealed relaxation: early nodes of a draft are accepted more gladly than late ones.

Li et al. 2026 (Cool-SD, arXiv 2601.09212): theorem 2 for the residual, proposition 2 for annealing.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract
from .chain import accepted_prefix, chain_laws, prefix_verdict, recovered_verdict, token_probs


class CoolRule:
    """Accept node i with probability f = min(1, ω_i p / q); a rejection draws from [p − q f]+.

    ω_i = max(floor, δ exp(−ν i − μ)) for i = 1, 2, …; μ makes exp(−ν i − μ) 1 on average over the
    first L nodes, so δ is the mean relaxation of a draft of L, most of it at the front.

    Accepting x emits it with probability q f = min(q, ω p), whatever comes after a rejection. So
    the total variation E of one step is at least Σ [min(q, ω p) − p]+, and this residual attains
    it:

    - ω ≤ 1: q f ≤ p, the residual max([p − q]+, (1 − ω) p) is just what p lacks, and E = 0. The
      step is exact; it rejects more than the token rule does, and so is slower.
    - ω ≥ 1: the residual is [p − q]+, and E = Σ min(q, ω p) − Σ min(q, p), the acceptance gained.
      No token is emitted with more than ω p, so E ≤ 1 − 1 / ω; `bound` is that of i = 1.

    The latter goes on to whole outputs: n tokens have at most ω_1^n times the probability that the
    target gives them, and a total variation of at most 1 − ω_1^(−n).

    The paper's own schedule has no floor and falls below 1 towards the end of a draft: exact there,
    but slower than the token rule. With a floor of 1 such nodes are judged by the token rule, which
    bends their step no more and accepts more.

    δ is the knob. With floor 1 and ω_1 ≤ 1 this is the token rule.

    Args:
        delta: δ, 0 or more.
        length: L, the length of a draft, 1 or more; not taken from the draft at hand, or the end of
            the output, where drafts are short, would be relaxed otherwise than its middle.
        nu: ν, how fast relaxation falls off, 0 or more; the paper's is 0.7.
        floor: the least ω, in [0, 1].

    Attributes:
        mu: μ.
        bound: the most that the total variation of one step can be, in [0, 1).
    """

    contract: Contract = "bounded"

    def __init__(self, delta: float, length: int, nu: float = 0.7, floor: float = 1.0) -> None:
        self.delta, self.length, self.nu, self.floor = delta, length, nu, floor
        # the first term stays outside of the sum, lest a steep schedule underflow
        self.mu = math.log(math.fsum(math.exp(-nu * i) for i in range(length)) / length) - nu
        self.bound = 1 - 1 / max(1.0, delta * math.exp(-nu - self.mu))

    def omega(self, nodes: int, device: torch.device | str = "cpu") -> Tensor:
        """ω_1 … ω_N `[N]`, float64."""
        i = torch.arange(1, nodes + 1, dtype=torch.float64, device=device)
        return (self.delta * (-self.nu * i - self.mu).exp()).clamp_min(self.floor)

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws."""
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        q, p = chain_laws(draft, "cool"), scores.at_nodes(draft)
        omega = self.omega(draft.nodes, p.device).to(p.dtype)
        prob = omega * token_probs(p, draft.tokens)  # [B, N]
        if q is not None:
            prob = prob / token_probs(q, draft.tokens)
        accepted = accepted_prefix(coins.accept(prob, draft.lengths), draft)
        spared = (1 - omega).clamp_min(0)
        return recovered_verdict(draft, scores.probs, q, accepted, coins, spared)
