"""The exact token rule: Leviathan et al. 2023 (algorithm 1), Chen et al. 2023 (algorithm 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..types import Categorical, Contract, ContractError, Draft, OneHot, Scores, Verdict
from .chain import accepted_prefix, pick, prefix_verdict, token_probs


class TokenRule:
    """Accept x with probability min(1, p(x) / q(x)); after the first rejection draw [p − q]+.

    When the whole draft stands, one bonus token is drawn from p. The joint law of what is emitted
    equals the target's for any q that the draft was really drawn from.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """See `AcceptanceRule.verify`; takes chains with `OneHot` or `Categorical` laws."""
        if draft.parents is not None:
            raise ContractError("the token rule judges chains; this draft is a tree")
        if not draft.nodes:  # plain decoding: one token from p
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        prob = token_probs(scores.at_nodes(draft), draft.tokens)  # [B, N]
        q: Tensor | None = None
        if isinstance(draft.law, Categorical):
            q = draft.law.probs
            prob = prob / token_probs(q, draft.tokens)
        elif not isinstance(draft.law, OneHot):
            name = type(draft.law).__name__
            raise ContractError(f"the token rule is exact for OneHot and Categorical, not {name}")
        accepted = accepted_prefix(coins.accept(prob, draft.lengths), draft)

        weights = pick(scores.probs, accepted)  # [B, V]: p after the kept prefix
        at = accepted.clamp_max(draft.nodes - 1)
        if q is None:
            residual = weights.scatter(1, draft.tokens.gather(1, at[:, None]), 0.0)
        else:
            residual = (weights - pick(q, at)).clamp_min_(0)
        # no rejection, or p = q up to rounding, where nothing is left over: p itself
        use = (accepted < draft.lengths) & (residual.sum(-1) > 0)
        weights = torch.where(use[:, None], residual, weights)
        return prefix_verdict(draft, accepted, coins.draw(weights))
