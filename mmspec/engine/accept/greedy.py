"""Greedy verification (Leviathan et al. 2023, section 2; Xia et al. 2023)."""

from __future__ import annotations

from ...errors import InputError
from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract, ContractError
from .chain import accepted_prefix, prefix_verdict


class GreedyRule:
    """Keep the longest prefix that the target's argmax would have produced, then emit its argmax.

    The output equals greedy decoding whatever the draft is; no coin is used. Ties go to the lower
    id, as in `torch.argmax`.

    Args:
        temperature: of the warpers; any but 0 is an `InputError`.
    """

    contract: Contract = "exact-greedy"

    def __init__(self, temperature: float = 0.0) -> None:
        if temperature != 0:
            raise InputError("rule 'greedy' needs temperature 0: it would ignore every other law")

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains of any law."""
        if draft.parents is not None:
            raise ContractError("the greedy rule judges chains; this draft is a tree")
        best = scores.probs.argmax(-1)  # [B, N + 1]
        accepted = accepted_prefix(best[:, : draft.nodes] == draft.tokens, draft)
        return prefix_verdict(draft, accepted, best.gather(1, accepted[:, None]).squeeze(1))
