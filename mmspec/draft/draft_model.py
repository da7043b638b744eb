"""A smaller model drafts token by token (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.protocols import Drafter
from .sound_laws import chain_of_laws, mended


class TokenModel(Protocol):
    """Protocol of a draft model: laws of next tokens over a cache that it may rewrite."""

    def start(self, rows: int) -> None:
        """Take in the condition; every token is still to come."""

    def seat(self, context: Context, rows: list[int]) -> None:
        """Take in the conditions of the samples that begin in these rows."""

    def extend(self, tokens: Tensor, start: list[int], draft: Draft | None = None) -> Tensor:
        """Laws `[B, n, V]` after each of `tokens [B, n]`, which stand at `start[b] + 0 .. n - 1`.

        With a tree in `draft`, the first token is its root and the others are its nodes. Position
        -1 is the condition's own last input; its token id is ignored. What the cache holds
        from `start` on is overwritten.
        """


def catch_up(context: Context, known: list[int]) -> tuple[Tensor, list[int]]:
    """The committed tokens `[B, n]` that a model has not read yet, and the first one's position.

    Row b has read the positions before `known[b]`. Rows that know more than others re-read a token
    or two: one width for the whole batch.
    """
    return unread(context.tokens, context.base, known)


def laws_behind(model: TokenModel, context: Context, known: list[int]) -> Tensor:
    """Laws `[B, V]` behind the last committed tokens, of a model that has read up to `known`."""
    return laws_at(model, context.tokens, context.base, known)


def laws_at(model: TokenModel, tokens: Tensor, ends: list[int], known: list[int]) -> Tensor:
    """Laws `[B, V]` behind the first `ends[b]` tokens of every row of `tokens [B, …]`."""
    inputs, start = unread(tokens, ends, known)
    laws = model.extend(inputs, start)
    # a row that came less far than others has read a little past its end
    last = [end - 1 - s for end, s in zip(ends, start, strict=True)]
    if min(last) == laws.shape[1] - 1:
        return laws[:, -1]
    return pick(laws, torch.tensor(last, device=laws.device))


def unread(tokens: Tensor, ends: list[int], known: list[int]) -> tuple[Tensor, list[int]]:
    """Tokens of a row's first `ends[b]` that are unread, see `catch_up`; one at least."""
    width = max(1, *(end - k for end, k in zip(ends, known, strict=True)))
    start = [max(-1, end - width) for end in ends]
    positions = torch.tensor(start, device=tokens.device)[:, None]
    positions = positions + torch.arange(width, device=positions.device)
    return tokens.gather(1, positions.clamp_min(0)), start


class TreeModelDrafter(Drafter):
    """Base of drafters whose draft model reads a tree behind the committed tokens.

    Args:
        model: the draft model; its cache holds committed tokens.
    """

    def __init__(self, model: TokenModel) -> None:
        self.model = model
        self._known: list[int] = []

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._known = [-1] * context.rows

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows:
            self._known[row] = -1

    def root_laws(self, context: Context) -> Tensor:
        """Let the model read what it has not read yet: laws `[B, 1, V]` behind the last token."""
        laws = laws_behind(self.model, context, self._known)
        self._known = list(context.base)
        return laws.unsqueeze(1)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the tree's own entries stand behind the last token that was committed before it
        self._known = [min(k, b - 1) for k, b in zip(self._known, context.base, strict=True)]


class ModelDrafter:
    """Draws each token from the drafter's own law, after the same guidance and warpers.

    The cache needs no rollback: the next draft starts writing at the first position that is new.

    Args:
        model: the draft model.
        more: which rows `[B]` draft on, given the probabilities `[B, n]` of their tokens so far (a
            draft-length policy's `more`); one synchronization a token. None: all that may. A model
            with an `estimate [B]` that the token of its last law stands tells that in their place.
            Rows in which a model is `full` draft nothing.
    """

    def __init__(self, model: TokenModel, more: Callable[[Tensor], Tensor] | None = None) -> None:
        self.model, self.more = model, more
        self._known: list[int] = []  # per row, positions before this one are in the model's cache

    def start(self, context: Context) -> None:
        self.model.start(context.rows)
        self._known = self._reached = [-1] * context.rows

    def seat(self, context: Context, rows: list[int]) -> None:
        self.model.seat(context, rows)
        for row in rows:
            self._known[row] = -1

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        depth = max(budget)
        lengths = torch.tensor(budget, device=context.tokens.device)
        tokens: list[Tensor] = []
        laws, good, confidence = [], [], list[Tensor]()
        for n in range(depth):
            if not n:
                law, is_law = mended(laws_behind(self.model, context, self._known))
            else:
                start = [b + n - 1 for b in context.base]
                law, is_law = mended(self._next_laws(tokens[-1], start))
            if not n and any(full := getattr(self.model, "full", ())):
                lengths = lengths * ~torch.tensor(full, device=lengths.device)
            laws.append(law)
            good.append(is_law)
            tokens.append(coins.draw(laws[-1], n))
            if self.more is not None:
                estimate: Tensor | None = getattr(self.model, "estimate", None)
                sure = laws[-1].gather(1, tokens[-1][:, None])[:, 0]
                confidence.append(sure if estimate is None else estimate)
                stops = ~self.more(torch.stack(confidence, 1))
                # the token stays that made the row stop
                lengths = torch.where(stops & (lengths > n + 1), n + 1, lengths)
                if n + 1 >= int(lengths.max()):
                    break
        depth = len(tokens)
        self._reached = [b + depth - 1 for b in context.base] if depth else list(self._known)
        return chain_of_laws(context, tokens, laws, good, lengths)

    def _next_laws(self, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws `[B, V]` behind drafted `tokens [B]` at positions `start`."""
        return self.model.extend(tokens[:, None], start)[:, -1]

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the last emitted token is the target's own, so the cache holds at most what is before it
        self._known = [min(b - 1, r) for b, r in zip(context.base, self._reached, strict=True)]
        self._reached = self._known
