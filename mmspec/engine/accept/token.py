"""The exact token rule: Leviathan et al. 2023 (algorithm 1), Chen et al. 2023 (algorithm 2)."""

from __future__ import annotations

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract
from .chain import accepted_prefix, chain_laws, prefix_verdict, ratios, recovered_verdict


class TokenRule:
    """Accept x with probability min(1, p(x) / q(x)); after the first rejection draw [p − q]+.

    When the whole draft stands, one bonus token is drawn from p. The joint law of what is emitted
    equals the target's for any q that the draft was really drawn from.
    """

    contract: Contract = "exact"

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws."""
        if not draft.nodes:  # plain decoding: one token from p
            return prefix_verdict(draft, draft.lengths, coins.draw(scores.probs[:, 0]))
        q = chain_laws(draft, "token")
        prob = ratios(scores.probs, q, draft.tokens)  # [B, N]
        accepted = accepted_prefix(coins.accept(prob, draft.lengths), draft)
        return recovered_verdict(draft, scores.probs, q, accepted, coins)
