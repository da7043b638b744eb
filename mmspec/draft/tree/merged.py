"""Several drafters under one root: merged trees (TAPS, Zbib et al. 2026) whose equal prefixes are
fused (RASD, Quan et al. 2025), with retrieval in place of a tree's least likely nodes (Graft, Shen
et al. 2026)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, ContractError, OneHot
from ...engine.laws import WithoutReplacement as Without
from ...engine.protocols import Drafter, seatable
from ..jacobi.coupled import CoupledJacobiDrafter
from ..shared_coins import OffsetCoins

_DRAWS = 256  # more than a drafter draws in a round; not what it does draw: that takes all rows


class MergedDrafter:
    """Joins the drafts of several drafters to one tree behind the last committed token.

    The first drafter's nodes are tried first. Of nodes with the same tokens from the root down only
    the first stays, and what followed the others follows it: no token is scored twice. That is
    exact. Once a sibling x fell, [p − q]+ has nothing left for x, so a later x never stands; and a
    later sibling that is no x was drawn from its q without x, which is how recursive rejection
    judges draws without replacement. It must be the first: a drawn token that takes the place of a
    chosen one, because the two are equal, is no draw from q. Each drafter has coins of its own, so
    that its nodes are independent of the others'.

    Whatever is accepted, each drafter is told what the target said of its own nodes.

    Args:
        drafters: whose drafts are merged; their nodes' laws are `OneHot`, `Categorical` or
            `WithoutReplacement`.
        nodes: most nodes of the merged tree. Later drafters get what earlier ones leave, row by
            row, their first nodes first. Behind a retrieval, a dynamic tree so gives up its least
            likely nodes for what was found and keeps them where nothing was.
    """

    def __init__(self, drafters: Sequence[Drafter], nodes: int = 256) -> None:
        self.drafters, self.nodes = list(drafters), nodes
        # A coupled window keeps drawn tokens for the next round as if nobody had looked. What fits
        # may then not depend on which tokens are equal: a fused node's place stays empty.
        self._refills = not any(isinstance(d, CoupledJacobiDrafter) for d in self.drafters)
        self._drafts: list[Draft] = []  # those of their nodes that fit
        self._places: list[Tensor] = []  # [B, N_i]: where each draft's nodes stand in the whole

    @property
    def wraps(self) -> Sequence[Drafter]:
        """The drafters."""
        return self.drafters

    def start(self, context: Context) -> None:
        for drafter in self.drafters:
            drafter.start(context)

    def seat(self, context: Context, rows: list[int]) -> None:
        for drafter in self.drafters:
            seatable(drafter).seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        return self._merge(
            [
                drafter.propose(context, budget, OffsetCoins(coins, i * _DRAWS))
                for i, drafter in enumerate(self.drafters)
            ]
        )

    def _merge(self, drafts: list[Draft]) -> Draft:
        levels = max(draft.levels for draft in drafts)
        tokens = torch.cat([draft.tokens for draft in drafts], dim=1)
        live = torch.cat([draft.live() for draft in drafts], dim=1)
        above = _parents(drafts)
        first = first_equal(tokens, above, live, levels)
        node = torch.arange(tokens.shape[1], device=tokens.device)
        distinct = live & (first == node)
        fits = (distinct if self._refills else live).cumsum(1) <= self.nodes
        kept = distinct & fits
        # kept nodes to the front, in their order
        order = (~kept).long().argsort(dim=1, stable=True)
        place = torch.empty_like(order).scatter_(1, order, node.expand_as(order)).gather(1, first)
        most = min(self.nodes, tokens.shape[1])
        if len(tokens) == 1 and tokens.device.type == "cpu":  # a row alone is read with its filling
            most = int(kept.sum())
        order = order[:, :most]
        above = torch.where(above < 0, -1, place.gather(1, above.clamp_min(0))).gather(1, order)

        sizes = [draft.nodes for draft in drafts]
        self._places = list(place.split(sizes, dim=1))
        known = (live & fits).split(sizes, dim=1)
        self._drafts = [
            replace(draft, lengths=own.sum(1)) for draft, own in zip(drafts, known, strict=True)
        ]
        faults = [draft.faulty for draft in drafts if draft.faulty is not None]
        return Draft(
            tokens.gather(1, order),
            kept.sum(1),
            _law(drafts, order),
            above,
            bounds=(levels, sum(draft.most_children for draft in drafts)),
            faulty=torch.stack(faults).any(0) if faults else None,
        )

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        if not draft.nodes:  # nobody was asked
            for drafter in self.drafters:
                drafter.observe(context, draft, scores, verdict)
            return
        last = draft.nodes  # slot of the last node
        for drafter, own, place in zip(self.drafters, self._drafts, self._places, strict=True):
            slots = F.pad(place + 1, (1, 0))  # the root's law comes first
            slots = slots.clamp_max(last)
            logits = None if scores.logits is None else pick(scores.logits, slots)
            its = Scores(pick(scores.probs, slots), logits=logits)
            drafter.observe(context, own, its, verdict)


def _parents(drafts: list[Draft]) -> Tensor:
    """Parents `[B, N]` of all drafts' nodes, one draft after the other."""
    parents, offset = [], 0
    for draft in drafts:
        own = draft.parents
        if own is None:
            chain = torch.arange(draft.nodes, device=draft.tokens.device) - 1
            own = chain.expand(len(draft.tokens), -1)
        parents.append(torch.where(own < 0, -1, own + offset))
        offset += draft.nodes
    return torch.cat(parents, dim=1)


def _law(drafts: list[Draft], order: Tensor) -> OneHot | Without:
    """The law of the nodes that `order [B, N]` takes from all drafts; see `MergedDrafter`."""
    drawn = None
    for draft in drafts:
        if isinstance(draft.law, Categorical | Without):
            drawn = draft.law.probs if draft.nodes else drawn
        elif not isinstance(draft.law, OneHot):
            name = type(draft.law).__name__
            raise ContractError(f"drafts with {name} laws can't be merged")
    if drawn is None:
        return OneHot()
    vocab, probs = drawn.shape[-1], []
    for draft in drafts:
        if isinstance(draft.law, Categorical | Without):
            probs += [draft.law.probs] if draft.nodes else []
        else:  # a chosen node has a one-hot row
            probs.append(F.one_hot(draft.tokens, vocab).to(drawn))
    return Without(torch.cat(probs, dim=1).gather(1, order[..., None].expand(-1, -1, vocab)))


def first_equal(tokens: Tensor, parents: Tensor, live: Tensor, levels: int) -> Tensor:
    """The first node `[B, N]` that stands for the same tokens from the root down as each node does.

    Itself, for most of them; a filling node is equal to no other. Nodes follow their parents.

    Args:
        tokens, parents: of nodes under one root, `[B, N]`; -1 is the root.
        live: True for real nodes `[B, N]`.
        levels: no node is deeper.
    """
    # slot 0 is the root, its own ancestor and equal to itself alone; slot n + 1 is node n
    above = F.pad(parents + 1, (1, 0))
    slots = above.shape[1]
    same = (tokens[:, :, None] == tokens[:, None, :]) & live[:, :, None] & live[:, None, :]
    equal = F.pad(same, (1, 0, 1, 0))
    equal[:, 0, 0] = True
    # what is equal over 2^k steps upwards is compared from there on: over 2^(k + 1) steps
    for _ in range(levels.bit_length()):
        upwards = equal.gather(1, above[:, :, None].expand(-1, -1, slots))
        equal = equal & upwards.gather(2, above[:, None, :].expand(-1, slots, -1))
        above = above.gather(1, above)
    itself = torch.eye(slots, dtype=torch.bool, device=tokens.device)
    return (equal | itself).int().argmax(2)[:, 1:] - 1
