"""Speculation within speculation: a drafter drafts for a model that drafts for the target.

Zhang et al. 2025 (SpecMQuant, its hierarchy) and Georganas et al. 2025 (ML-SpecQD), at any
temperature.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.accept.recursive import RecursiveRule
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.laws import Categorical
from ..engine.loop import advance
from ..engine.protocols import AcceptanceRule, Drafter, Target, seatable
from ..engine.stats import SpecStats
from ..models.rounded_copy import RoundedCopy
from ..models.target import TokenTarget
from .shared_coins import InnerCoins
from .sound_laws import chain_of_laws, faults, mended


class NestedDrafter:
    """Drafts by speculation: a drafter drafts for a model between it and the target.

    What an exact rule lets through is a draw from the middle model's law, token by token, whatever
    the inner drafter had proposed: so the target judges it by that law, and the output is exact.
    A draft is as long as the budget says, never as long as the inner rounds happen to go.

    All chance is the proposal's: its verdicts on inner drafts, too, are none of the target's.

    Args:
        middle: the model between, over the committed tokens.
        inner: drafts for it; it is told of inner rounds, and then of the target's.
        depth: tokens that it drafts at most.
        rule: an exact one, by which the middle model judges.

    Attributes:
        stats: counters of the inner rounds.
    """

    def __init__(
        self, middle: Target, inner: Drafter, depth: int = 4, rule: AcceptanceRule | None = None
    ) -> None:
        self.middle, self.inner, self.depth = middle, inner, depth
        self.rule = rule or RecursiveRule()
        self.stats = SpecStats()

    @property
    def wraps(self) -> tuple[Target, Drafter]:
        """The copy of the target, and what drafts for it."""
        return self.middle, self.inner

    def start(self, context: Context) -> None:
        self.stats.start(context.rows)
        self.middle.start(context.rows)
        self.inner.start(context)

    def seat(self, context: Context, rows: list[int]) -> None:
        for part in (self.middle, self.inner):
            seatable(part).seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        device, depth = context.tokens.device, max(budget)
        lengths = torch.tensor(budget, device=device)
        if not depth:
            return chain_of_laws(context, [], [], lengths)
        ends = [base + most for base, most in zip(context.base, budget, strict=True)]
        inside = replace(
            context,
            tokens=F.pad(context.tokens, (0, depth + 1)),
            base=list(context.base),
            finished=[not most for most in budget],
            round=0,
            began=None,
        )
        laws = good = torch.zeros(0)
        while not all(inside.finished):
            proposal, verification = (InnerCoins(coins, 2 * inside.round + side) for side in (0, 1))
            rooms = [end - base - 1 for end, base in zip(ends, inside.base, strict=True)]
            draft = self.inner.propose(
                inside, [max(0, min(self.depth, room)) for room in rooms], proposal
            )
            scores = self.middle.score(inside, draft)
            probs, sound = mended(scores.probs)
            scores = replace(scores, laws=probs)
            verdict = self.rule.verify(draft, scores, verification)
            self.middle.commit(inside, draft, verdict)
            nodes = verdict.drawn_by(draft)
            if not inside.round:
                laws = torch.full_like(probs[:, :1], 1 / probs.shape[-1]).repeat(1, depth + 1, 1)
                good = torch.ones_like(sound[:, :1]).repeat(1, depth + 1)
            places = inside.lengths - context.lengths
            laws = _written(laws, pick(probs, nodes), places)
            good = _written(good, sound.gather(1, nodes), places)
            self.stats.observe(*advance(inside, draft, scores, verdict), scores.calls)
            told = zip(inside.finished, inside.base, ends, strict=True)
            inside.finished = [over or base >= end for over, base, end in told]
            self.inner.observe(inside, draft, scores, verdict)
        places = context.lengths[:, None] + torch.arange(depth, device=device)
        made = Draft(inside.tokens.gather(1, places), lengths, Categorical(laws[:, :depth]))
        made.faulty = faults(good[:, :depth], made)
        return made

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.inner.observe(context, draft, scores, verdict)


def _written(into: Tensor, new: Tensor, places: Tensor) -> Tensor:
    """`into [B, W, …]` with `new [B, K, …]` from each row's place on, as far as it reaches.

    The last column takes the rest; what a later round emits goes over the filling of earlier ones.
    """
    index = places[:, None] + torch.arange(new.shape[1], device=places.device)
    index = index.clamp_max(into.shape[1] - 1).view(*index.shape, *[1] * (new.ndim - 2))
    return into.scatter(1, index.expand_as(new), new)


def nested(rounded: RoundedCopy, inner: Drafter, depth: int) -> NestedDrafter:
    """The drafter whose middle model is the target on rounded weights."""
    return NestedDrafter(TokenTarget(rounded), inner, depth)
