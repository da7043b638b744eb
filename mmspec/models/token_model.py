"""A token model over a cache, and its laws behind what it has not read yet."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.draft import Context, Draft
from .reach import Reach


class TokenModel(Protocol):
    """Protocol of a model that says tokens: laws of next ones over a cache that it may rewrite."""

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
    reach: Reach | None = getattr(model, "reach", None)
    again = None if reach is None else reach.again
    while again is not None and max(e - k for e, k in zip(ends, known, strict=True)) > again:
        # rows that know more than others would read too much again
        part = [min(pair) for pair in zip(ends, (k + again for k in known), strict=True)]
        model.extend(*unread(tokens, part, known))
        known = part
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
    if start[0] >= 0 and min(start) == max(start):  # all rows from one place on
        return tokens[:, start[0] : start[0] + width], start
    positions = torch.tensor(start, device=tokens.device)[:, None]
    positions = positions + torch.arange(width, device=positions.device)
    return tokens.gather(1, positions.clamp_min(0)), start
