"""Draft models that read the target's hidden states."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.accept.chain import pick
from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.protocols import Drafter, seatable
from ...models.decoders import HeadDecoder
from ...models.guided import GuidedDecoder
from ...models.prefill import WHOLE
from ...models.running_rows import LayersOfRows


class FeatureModel(GuidedDecoder, ABC):
    """A network beside the target that is shown the target's hidden states, under its guidance.

    `observe` is told those in front of every token that joins the output. So a draft depends on
    committed tokens and its own draws alone.

    Args:
        decoder: the network.
        prefix, mask: what it reads of the samples' prefixes, `[S, T', D]` and `[S, T']`.
        target: what it drafts for; from now on its calls leave their hidden states behind.
        warp: makes laws of logits; None: the target's. Drafts of the likeliest tokens want them
            ranked, also where the target's law is the largest alone.

    Attributes:
        context: where the rows stand: of a round within a round, there. None outside a generation:
            then no hidden state is known.
        most: tokens that it can draft ahead; None: any number.
        reads_prefix: last columns of the target's prefix whose hidden states it reads.
    """

    drafts = watched = True
    decoder: HeadDecoder
    most: int | None = None
    reads_prefix: int = WHOLE

    def __init__(
        self,
        decoder: HeadDecoder,
        prefix: Tensor,
        mask: Tensor,
        target: GuidedDecoder,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        of = target.setting
        # it reads in one direction, whatever the target does with its prefix
        own = of._replace(prefix=prefix, mask=mask, warp=warp or of.warp, both_ways=None)
        super().__init__(decoder, own)
        if decoder.dim:  # others read no hidden states
            target.watch(decoder.reads, self.reads_prefix)
        self.target = target
        self.context: Context | None = None
        self._features = torch.zeros(0)  # [R, room, D]: hidden states in front of every output

    def start(self, rows: int) -> None:
        """Read the prefix; the target has just read it."""
        self._narrow()
        self._features = self.prefix.new_zeros(len(self.prefix), self.room, self.decoder.dim)
        self._start(rows, self._states_of_prefix())

    def seat(self, context: Context, rows: list[int]) -> None:
        """Read the prefixes in these rows; the target has just read them."""
        self._sit(context.samples or [])
        self._begin(rows, self._states_of_prefix())
        self._narrow()

    def _states_of_prefix(self) -> Tensor:
        """The target's hidden states `[R, T, D]` in front of its prefix's columns."""
        prefix, mask = map(self.running.of_samples, self.target.setting[:2])
        before = prefix.new_zeros(*prefix.shape[:2], self.decoder.dim)
        hidden = self.target.hidden
        if self.context is not None and hidden is not None and (known := hidden.shape[1]):
            # what is padding in this batch may not be there in another
            real = mask[:, -1 - known : -1, None]
            before[:, -known:] = self.decoder.fuse(hidden) * real
        return before

    @abstractmethod
    def _start(self, rows: int, before: Tensor) -> None:
        """Read the target's prefix, with the hidden states `[R, T, D]` in front of its columns."""

    @abstractmethod
    def _begin(self, rows: list[int], before: Tensor) -> None:
        """Read it in these rows alone."""

    def _of_all_rows(self, index: Tensor) -> Tensor:
        """`[B, n]` of samples to `[R, n]` of rows."""
        copies = len(self.prefix) // len(index)
        return index if copies == 1 else index.repeat(copies, 1)

    def _columns(self, x: Tensor, first: list[int], count: int = 1) -> Tensor:
        """Columns `[R, count, …]` of `x [R, n, …]` from those of samples `first [B]` on."""
        return columns_from(x, first * (len(self.prefix) // len(first)), count)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        """Take the target's hidden states in front of the tokens that have joined the output."""
        if scores.hidden is None:
            raise ValueError("the head reads the target's hidden states, and it gives none")
        # behind the last committed token, and behind every node that was kept: what lies behind
        # one that was not is overwritten before it is read
        index = verdict.drawn_by(draft)
        first = emitted_before(context)
        states = self.decoder.fuse(pick(scores.hidden, self._of_all_rows(index)))
        if min(first) == max(first):
            self._features[:, first[0] : first[0] + index.shape[1]] = states
            return
        positions = torch.tensor(first, device=index.device)[:, None] + self.keys[: index.shape[1]]
        rows = torch.arange(len(self.prefix), device=index.device)[:, None]
        self._features[rows, self._of_all_rows(positions)] = states


def columns_from(x: Tensor, first: list[int], count: int = 1) -> Tensor:
    """Columns `[R, count, …]` of `x [R, n, …]`, from `first [R]` on in every row.

    What lies in front of the first one is the first one itself.
    """
    if min(first) == max(first) >= 0:
        return x if count == x.shape[1] else x[:, first[0] : first[0] + count]
    columns = torch.tensor(first, device=x.device)[:, None]
    return pick(x, (columns + torch.arange(count, device=x.device)).clamp_min(0))


def less(ends: list[int], starts: list[int]) -> list[int]:
    """Differences of positions, row by row."""
    return [end - start for end, start in zip(ends, starts, strict=True)]


def emitted_before(context: Context) -> list[int]:
    """Tokens that each row had in front of the last round."""
    return [base - new for base, new in zip(context.base, context.emitted, strict=True)]


def still_known(known: list[int], context: Context) -> list[int]:
    """Positions of each row that have been read for good.

    Of rounds within a round, what was read in them may have fallen, and stood on the hidden states
    of a copy; in others nothing that was read behind the round before counts as known.
    """
    before = emitted_before(context)
    return [min(count, first) for count, first in zip(known, before, strict=True)]


class TokenFeatureModel(FeatureModel):
    """A `FeatureModel` that says one token a call, of chains and trees."""

    def extend(
        self, tokens: Tensor, start: list[int], draft: Draft | None = None, use: LayersOfRows = None
    ) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]`, see `TokenModel`; all layers run."""
        if draft is not None and draft.nodes:
            return self._grow(tokens, start, draft)
        if self.context is not None and start[0] < self.context.base[0]:
            return self._read(self.context, tokens, start)
        return self._next(tokens, start)

    @abstractmethod
    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        """Laws of the root and of all nodes of a tree that has gained some."""

    @abstractmethod
    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws behind committed tokens, which are read with the target's hidden states."""

    @abstractmethod
    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws behind the next token of a chain; outside a generation, behind any tokens."""


class EagleDrafter:
    """Wraps a drafter at work with a head: shows the head what the target's states were.

    Args:
        model: the head.
        drafter: of chains, blocks, fixed trees or dynamic trees, with `model` for its draft model.
    """

    def __init__(self, model: FeatureModel, drafter: Drafter) -> None:
        self.model, self.drafter = model, drafter

    @property
    def wraps(self) -> tuple[Drafter, ...]:
        """The drafter."""
        return (self.drafter,)

    def start(self, context: Context) -> None:
        self.model.context = context
        self.drafter.start(context)

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.context = context
        seatable(self.drafter).seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self.model.context = context
        if self.model.most is not None:
            budget = [min(b, self.model.most) for b in budget]
        return self.drafter.propose(context, budget, coins)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.model.observe(context, draft, scores, verdict)
        self.drafter.observe(context, draft, scores, verdict)
