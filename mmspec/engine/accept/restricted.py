"""The token rule over what an early layer of the target lets through (FASER, Chen et al. 2026)."""

from __future__ import annotations

import torch.nn.functional as F

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract, ContractError
from .chain import accepted_prefix, chain_laws, prefix_verdict, recovered_verdict, token_probs


class RestrictedRule:
    """Accept x with f(x) = 1_U(x) min(1, p(x) / q(x)); after the first rejection draw p − q f.

    U are the tokens that the early law behind the parent gives `least` or more. It is known before
    x is drawn, and f for the whole vocabulary. Accepting emits x with probability q f ≤ p, and the
    residual is just what p lacks, so the rule is exact for any U. What follows a drafted token
    outside of U falls for certain, and the target need not read it.

    The published system ends a draft at a pruned token and says the next one by p. That is p − q f
    no more: the total variation of a step is up to 0.25.

    Args:
        layers: the target's first layers, whose law is the early one; None: half of them.
        least: θ, in [0, 1]; at 0 this is the token rule.
    """

    contract: Contract = "exact"

    def __init__(self, layers: int | None, least: float) -> None:
        self.layers, self.least = layers, least

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws; laws behind what is pruned may be 0."""
        if not draft.nodes:
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        if scores.early is None:
            raise ContractError("the restricted rule needs an early layer's laws; there are none")
        q, p = chain_laws(draft, "restricted"), scores.at_nodes(draft)
        if q is None:
            q = F.one_hot(draft.tokens, p.shape[-1])
        # [p − 1_U q]+ is [p − q]+ in U and p elsewhere: p − q f
        q = q * (scores.early[:, : draft.nodes] >= self.least)
        there = token_probs(q, draft.tokens)
        prob = (token_probs(p, draft.tokens) / there).masked_fill(there == 0, 0)  # [B, N]
        accepted = accepted_prefix(coins.accept(prob, draft.lengths), draft)
        return recovered_verdict(draft, scores.probs, q.to(p.dtype), accepted, coins)
