"""Several drafters under one root: merged trees (TAPS, Zbib et al. 2026) and retrieval branches
beside a model's tree (as in RASD, Quan et al. 2025; without its fusion of equal prefixes)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.types import (
    Categorical,
    Context,
    ContractError,
    Draft,
    Drafter,
    OneHot,
    Scores,
    Verdict,
)

_DRAWS = 256  # more than a drafter draws in a round; not what it does draw: that takes all rows


class MergedDrafter:
    """The drafts of all drafters stand side by side behind the last committed token.

    The first drafter's nodes are tried first. Every node keeps the law it was drawn from, and each
    drafter has coins of its own, so siblings are independent, as recursive rejection asks.
    Whatever is accepted, each drafter is told what the target said of its own nodes.

    Args:
        drafters: whose drafts are merged; drawn siblings must be independent.
        nodes: most nodes of the merged tree; later drafters get what earlier ones leave, row by
            row, so a retrieval that finds nothing makes room for the model's tree.
    """

    def __init__(self, drafters: Sequence[Drafter], nodes: int = 256) -> None:
        self.drafters, self.nodes = list(drafters), nodes
        self._drafts: list[Draft] = []
        self._places: list[Tensor] = []  # [B, N_i]: where each draft's nodes stand in the whole

    def start(self, context: Context) -> None:
        for drafter in self.drafters:
            drafter.start(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._drafts = [
            drafter.propose(context, budget, Offset(coins, i * _DRAWS))
            for i, drafter in enumerate(self.drafters)
        ]
        return self._merge()

    def _merge(self) -> Draft:
        drafts, vocab = self._drafts, None
        for draft in drafts:
            if isinstance(draft.law, Categorical) and draft.nodes:
                vocab = draft.law.probs.shape[-1]
        live = torch.cat([draft.live() for draft in drafts], dim=1)
        total = live.shape[1]
        # real nodes to the front, in their order
        order = (~live).long().argsort(dim=1, stable=True)
        place = torch.empty_like(order).scatter_(
            1, order, torch.arange(total, device=order.device).expand_as(order)
        )
        parents, offset, self._places = [], 0, []
        for draft in drafts:
            self._places.append(place[:, offset : offset + draft.nodes])
            parents.append(torch.where(_parents(draft) < 0, -1, _parents(draft) + offset))
            offset += draft.nodes
        above = torch.cat(parents, dim=1)
        above = torch.where(above < 0, -1, place.gather(1, above.clamp_min(0))).gather(1, order)
        tokens = torch.cat([draft.tokens for draft in drafts], dim=1).gather(1, order)
        law: OneHot | Categorical = OneHot()
        if vocab is not None:
            probs = torch.cat([_probs(draft, vocab) for draft in drafts if draft.nodes], dim=1)
            law = Categorical(probs.gather(1, order[..., None].expand(-1, -1, vocab)))
        nodes = min(total, self.nodes)
        if nodes < total:
            tokens, above = tokens[:, :nodes], above[:, :nodes]
            if isinstance(law, Categorical):
                law = Categorical(law.probs[:, :nodes])
        faults = [draft.faulty for draft in drafts if draft.faulty is not None]
        levels = max(draft.levels for draft in drafts)
        children = sum(draft.most_children for draft in drafts)
        return Draft(
            tokens,
            live.sum(1).clamp_max(nodes),
            law,
            above,
            bounds=(levels, children),
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
            # nodes that did not fit were not scored
            fits = (place < draft.nodes).cumprod(1).sum(1)
            lengths = torch.minimum(own.lengths, fits)
            index = slots.clamp_max(last)[..., None].expand(-1, -1, scores.probs.shape[-1])
            drafter.observe(
                context,
                replace(own, lengths=lengths),
                Scores(scores.probs.gather(1, index)),
                verdict,
            )


class Offset:
    """Coins whose draws are numbered on from `first`: two drafters never share one."""

    def __init__(self, coins: RoundCoins, first: int) -> None:
        self._coins, self._first = coins, first

    def accept(self, prob: Tensor, lengths: Tensor) -> Tensor:
        return self._coins.accept(prob, lengths)

    def draw(self, weights: Tensor, index: int = 0) -> Tensor:
        return self._coins.draw(weights, index + self._first)

    def normal(self, shape: tuple[int, ...], index: int = 0) -> Tensor:
        return self._coins.normal(shape, index + self._first)

    def exponential(self, places: Tensor, count: int) -> Tensor:
        return self._coins.exponential(places, count)


def _parents(draft: Draft) -> Tensor:
    """Parents `[B, N]` of any draft."""
    if draft.parents is not None:
        return draft.parents
    chain = torch.arange(draft.nodes, device=draft.tokens.device) - 1
    return chain.expand(len(draft.tokens), -1)


def _probs(draft: Draft, vocab: int) -> Tensor:
    """The laws `[B, N, V]` of a draft; a chosen node has a one-hot row."""
    if isinstance(draft.law, Categorical):
        return draft.law.probs
    if isinstance(draft.law, OneHot):
        return F.one_hot(draft.tokens, vocab).double()
    name = type(draft.law).__name__
    raise ContractError(f"merged drafts have independent siblings; {name} ones are not")
