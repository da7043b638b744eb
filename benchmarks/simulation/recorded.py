"""Acceptance of a drafter at every place of a text, recorded along the target's own output."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from mmspec.draft.guarded import GuardedDrafter
from mmspec.engine.coins import RoundCoins
from mmspec.engine.draft import Context, Draft, Scores, Verdict
from mmspec.engine.laws import Categorical, OneHot

MODULES = ("mmspec.pipelines.image.token_pipeline", "mmspec.pipelines.vlm.generate")


@dataclass
class Trace:
    """Drafts that a drafter would have made at every place of an output.

    Behind the first n tokens of an output, whatever way they came about, the next one x was an
    accepted draft with probability min(1, q(x)/p(x)): the token rule emits it by acceptance with
    probability min(p, q), and with probability p in all. So one record along the output serves
    drafts of every length. That is so of a draft model with a cache of its own. One that works in
    the target's cache reads there what it wrote itself, from the second drafted token on.

    Attributes:
        tokens: the output.
        stands: min(1, q/p) of each of them.
        rank: tokens that the drafter holds to be likelier; all of them where its law has none of
            this one.
        limit: tokens that the output might have had.
        own, laws: the target's law `[V]` of each of them, and the drafter's.
    """

    tokens: list[int] = field(default_factory=list)
    stands: list[float] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    limit: int = 0
    own: list[Tensor] = field(default_factory=list)
    laws: list[Tensor] = field(default_factory=list)


def restricted(trace: Trace, early: Trace, least: float) -> tuple[list[float], list[float]]:
    """Probabilities, given the output's token x, that its draft stands, and that it is pruned.

    Rule `restricted` prunes drafts to which the early law gives less than θ, and lets others stand
    as the token rule does: x was an accepted draft with probability 1_U(x) min(p, q)(x) / p(x).
    Behind one that fell x is drawn from r ∝ p − 1_U min(p, q), so that it fell by pruning with
    probability q(not U) r(x) / p(x). The rule's own early law is at temperature 1: so must be the
    record, or it prunes a little otherwise.

    Args:
        trace: of the draft model.
        early: of the layer that prunes, along the same output.
        least: θ.
    """
    stands, pruned = list[float](), list[float]()
    for token, p, q, told in zip(trace.tokens, trace.own, trace.laws, early.laws, strict=True):
        let_through = told >= least
        kept = torch.minimum(p, q) * let_through
        lost = float(1 - kept.sum())
        stands.append(float(kept[token] / p[token]))
        share = float((p - kept)[token]) / lost if lost > 0 else 0.0
        pruned.append(float((q * ~let_through).sum()) * share / float(p[token]))
    return stands, pruned


class Asked(GuardedDrafter):
    """Asks a drafter for one token a round, which nobody judges, and notes what it said.

    Args:
        trace: where it is noted.
    """

    def __init__(self, drafter: Any, vocab_size: int | None, most: int, *, trace: Trace) -> None:
        super().__init__(drafter, vocab_size, most)
        self.trace = trace
        self._said: Draft | None = None

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._said = super().propose(context, [1] * context.rows, coins)
        if self.fault is not None:
            raise RuntimeError(f"the drafter failed: {self.fault}")
        none = torch.zeros_like(self._said.lengths)
        return Draft(self._said.tokens[:, :0], none, Categorical(torch.zeros(0)))

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        assert self._said is not None
        law = law_of(self._said, scores.probs.shape[-1])
        token = int(verdict.last)
        p, q = float(scores.probs[0, 0, token]), float(law[token])
        self.trace.limit = context.limit
        self.trace.tokens.append(token)
        self.trace.own.append(scores.probs[0, 0].double())
        self.trace.laws.append(law.double())
        self.trace.stands.append(min(1.0, q / p))
        self.trace.rank.append(int((law > q).sum()) if q else len(law))
        super().observe(context, self._said, scores, verdict)


def law_of(draft: Draft, vocab_size: int) -> Tensor:
    """Law `[V]` of the first node of a batch of one; all zeros where nothing is drafted."""
    law = torch.zeros(vocab_size, device=draft.tokens.device)
    if not draft.nodes or not int(draft.lengths[0]):
        return law
    if isinstance(draft.law, OneHot):
        law[draft.tokens[0, 0]] = 1.0
        return law
    assert isinstance(draft.law, Categorical)
    law[: draft.law.probs.shape[-1]] = draft.law.probs[0, 0]
    return law


@contextmanager
def recording() -> Iterator[Trace]:
    """Decode plainly inside, and ask a method's drafter at every place."""
    trace = Trace()

    def asked(drafter: Any, vocab_size: int | None, most: int) -> Asked:
        return Asked(drafter, vocab_size, most, trace=trace)

    with ExitStack() as stack:
        for module in MODULES:
            stack.enter_context(patch(f"{module}.GuardedDrafter", asked))
        stack.enter_context(patch("mmspec.pipelines.notices.Notices.check"))  # nothing is to pay
        yield trace
