"""The token rule where a router asks the target, and confidence elsewhere (S2D2 as published)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..coins import RoundCoins
from ..draft import Draft, Scores, Verdict
from ..laws import Contract
from .chain import chain_laws, excused_prefix
from .verify_router import Estimate, Policy, Score, VerifyRouter, make_router


@dataclass
class RoutedDraft(Draft):
    """A chain of which some rows, or some of their nodes, stand without the target's word.

    Attributes:
        asks: on the host, rows that ask for it; where none does the target is not called.
        trusted: nodes that stand without it `[B, N]`; None: none.
    """

    asks: list[bool] = field(default_factory=list)
    trusted: Tensor | None = None


class RoutedRule:
    """Token rule for the nodes of rows that ask; all others stand as they were drafted.

    Han et al. 2026 (S2D2). The drafter says which rows ask (`RoutedDraft.asks`), and which of their
    nodes it trusts (`trusted`): places that it had filled earlier by confidence. A row that does
    not ask keeps its draft, and no token of the target's own follows. A draft that says nothing of
    either is judged by the token rule as a whole.

    In a row that asks, nodes stand with probability min(1, p / q), trusted ones always; what falls
    is drawn from [p − q]+, and behind a draft that stands one token is drawn from p. So where every
    row asks and nothing is trusted, it is the exact token rule. A row that does not ask emits what
    the drafter drew from q and kept by confidence: a token of q(x) > θ, or a pass's surest one. So
    a step is off by as much as q and p differ: the rule is lossy, without a bound.

    Args:
        router: decides for the drafter; it is asked before the target is.
        confidence: θ, from which on a place is filled without a judge.
        temperature: of the warpers; at 0 the target's likeliest token stands.
    """

    contract: Contract = "lossy"

    def __init__(
        self, router: VerifyRouter, confidence: float = 0.85, temperature: float = 1.0
    ) -> None:
        self.router, self.confidence, self.greedy = router, confidence, temperature == 0

    def verify(self, draft: Draft, scores: Scores, coins: RoundCoins) -> Verdict:
        """Judge chains with `OneHot` or `Categorical` laws."""
        asks, trusted = [True] * len(draft.lengths), None
        if isinstance(draft, RoutedDraft):
            asks, trusted = draft.asks, draft.trusted
        own = draft.tokens.new_zeros(len(asks), 1)  # of rows that are over, and have no draft
        if draft.nodes:
            own = draft.tokens.gather(1, (draft.lengths[:, None] - 1).clamp_min(0))
        if not any(asks):
            return Verdict(draft.lengths, draft.tokens, own, draft.lengths)
        asking = torch.tensor(asks, device=draft.lengths.device)
        q = chain_laws(draft, "routed") if draft.nodes else None
        excused = ~asking[:, None].expand_as(draft.tokens)
        if trusted is not None:
            excused = excused | trusted
        verdict = excused_prefix(draft, scores, q, excused, self.greedy, coins)
        if all(asks):
            return verdict
        last = torch.where(asking[:, None], verdict.last, own)
        counts = torch.where(asking, verdict.counts, draft.lengths)
        return replace(verdict, last=last, counts=counts)


def routed_rule(
    policy: Policy,
    estimate: Estimate,
    score: Score,
    cost: float,
    beta: float,
    threshold: float,
    on: float,
    off: float,
    least: int,
    explores: float,
    confidence: float,
    temperature: float = 1.0,
) -> RoutedRule:
    """The rule with its router, see `make_router`."""
    numbers = cost, beta, threshold, on, off, least, explores
    return RoutedRule(make_router(policy, estimate, score, *numbers), confidence, temperature)
