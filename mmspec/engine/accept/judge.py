"""Judged tokens: a head on the target's states says that a token will do (Judge Decoding)."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract, ContractError
from .chain import chain_laws, excused_prefix, token_probs


class Judge(Protocol):
    """Says of tokens that the target has read how likely they are acceptable.

    Attributes:
        threshold: above which they are taken, where nobody says.
    """

    threshold: float

    def __call__(self, hidden: Tensor) -> Tensor:
        """Probabilities J `[...]` of the target's last hidden states `[..., D]`."""


class JudgeRule:
    """Accept x if J > threshold and p(x) ≥ floor, or else by the token rule; residual [p − q]+.

    Bachmann et al. 2025 (Judge Decoding) and Garipov et al. 2025 (AutoJudge). J is of the target's
    hidden state after it has read x. Neither paper has the floor: without it a token that the
    target, or what processes its logits, gives no probability may stand.

    Each token is emitted with P(y) = q(y) f(y) + (1 − Σ q f) res(y), f = 1 where the judge takes y
    and min(1, p / q) elsewhere. Its total variation from p is Σ [q − p]+ over the tokens that the
    judge takes: the acceptance that it adds. What stands has p ≥ floor, so that is no more than
    1 − floor, which says little: the rule is lossy.

    At temperature 0 the likeliest token stands, or what the judge takes, and the likeliest one
    replaces what falls; the laws should then be those of temperature 1, for the floor.

    Args:
        judge: gives J; None: there is none, and the floor alone is asked.
        threshold: in [0, 1]; at 0 the floor alone is asked; None: the judge's own.
        floor: in [0, 1]; tokens of p = 0 never stand.
        temperature: of the warpers.
    """

    contract: Contract = "lossy"

    def __init__(
        self,
        judge: Judge | None = None,
        threshold: float | None = None,
        floor: float = 0.0,
        temperature: float = 1.0,
    ) -> None:
        self.judge = None if threshold == 0 else judge
        if self.judge is not None and threshold is None:
            threshold = self.judge.threshold
        self.threshold, self.floor, self.greedy = threshold or 0.0, floor, temperature == 0

    @property
    def reads_states(self) -> bool:
        """True if the target's hidden states decide, too."""
        return self.judge is not None

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws.

        Raises:
            ContractError: a draft of another kind, or nobody kept the target's hidden states.
        """
        q, taken = None, torch.ones_like(draft.tokens, dtype=torch.bool)
        if draft.nodes:
            q = chain_laws(draft, "judge")
            own = token_probs(scores.at_nodes(draft), draft.tokens)  # [B, N]
            taken = (own >= self.floor) & (own > 0) & self._acceptable(draft, scores)
        return excused_prefix(draft, scores, q, taken, self.greedy, coins)

    def _acceptable(self, draft: Draft, scores: Scores) -> Tensor:
        """True where the judge takes a node, `[B, N]`; everywhere if there is no judge."""
        if self.judge is None:
            return torch.ones_like(draft.tokens, dtype=torch.bool)
        if scores.hidden is None:
            raise ContractError("the judge rule reads the target's hidden states; none were kept")
        # rows without a condition stand behind the others
        hidden = scores.hidden[: len(draft.lengths), 1:]
        return self.judge(hidden) > self.threshold
