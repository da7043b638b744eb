"""A smaller model drafts token by token (Leviathan et al. 2023)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..engine.protocols import Drafter
from ..models.token_model import TokenModel, laws_behind
from .sound_laws import chain_of_laws, mended


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
        greedy: the output is greedy. Then the likeliest token of each law is drafted, without
            chance; a model whose laws are not point masses still tells by them how sure it is.
    """

    def __init__(
        self,
        model: TokenModel,
        more: Callable[[Tensor], Tensor] | None = None,
        greedy: bool = False,
    ) -> None:
        self.model, self.more, self.greedy = model, more, greedy
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
        laws, good, confidence = [], list[Tensor](), list[Tensor]()
        for n in range(depth):
            if not n:
                law = self._first_laws(context)
            else:
                law = self._next_laws(tokens[-1], [b + n - 1 for b in context.base])
            if self.more is not None:  # it is told what is drawn from them
                law, is_law = mended(law)
                good.append(is_law)
            if not n and any(full := getattr(self.model, "full", ())):
                lengths = lengths * ~torch.tensor(full, device=lengths.device)
            laws.append(law)
            tokens.append(self._drawn(law, coins, n))
            stops = self._stops(tokens, law, confidence)
            if stops is not None:
                # the token stays that made the row stop
                lengths = torch.where(stops & (lengths > n + 1), n + 1, lengths)
                if n + 1 >= int(lengths.max()):
                    break
        depth = len(tokens)
        self._reached = [b + depth - 1 for b in context.base] if depth else list(self._known)
        return chain_of_laws(context, tokens, laws, lengths, good or None)

    def _drawn(self, law: Tensor, coins: RoundCoins, number: int) -> Tensor:
        """Tokens `[B]` of laws `[B, V]`; of a point mass without a coin."""
        if self.greedy or getattr(getattr(self.model, "warp", None), "greedy", False):
            return law.argmax(-1)
        return coins.draw(law, number)

    def _first_laws(self, context: Context) -> Tensor:
        """Laws `[B, V]` behind the last committed tokens."""
        return laws_behind(self.model, context, self._known)

    def _next_laws(self, tokens: Tensor, start: list[int]) -> Tensor:
        """Laws `[B, V]` behind drafted `tokens [B]` at positions `start`."""
        return self.model.extend(tokens[:, None], start)[:, -1]

    def _stops(self, tokens: list[Tensor], law: Tensor, confidence: list[Tensor]) -> Tensor | None:
        """Rows `[B]` that draft no more behind the last of `tokens [B]`; None: nobody asks.

        `law [B, V]` is what it was drawn from; `confidence` collects what is told of each.
        """
        if self.more is None:
            return None
        estimate: Tensor | None = getattr(self.model, "estimate", None)
        sure = law.gather(1, tokens[-1][:, None])[:, 0]
        confidence.append(sure if estimate is None else estimate)
        return ~self.more(torch.stack(confidence, 1))

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        # the last emitted token is the target's own, so the cache holds at most what is before it
        self._known = [min(b - 1, r) for b, r in zip(context.base, self._reached, strict=True)]
        self._reached = self._known
