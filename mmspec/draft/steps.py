"""A smaller model drafts a step of text: up to where a sentence, a line or a paragraph ends."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.accept.chain import pick
from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft, Scores, Verdict
from ..models.token_model import TokenModel
from .draft_model import ModelDrafter


class StepDrafter(ModelDrafter):
    """Drafts as `ModelDrafter` does, and stops where a step is over.

    A draft is one step that stands or falls as a whole. If its model is watched, drafts have the
    `states` that their tokens were drawn from, for a router.

    Args:
        model: the draft model.
        ends: of the step so far `[B, n]`, rows `[B]` in which the last token ends it.
    """

    def __init__(self, model: TokenModel, ends: Callable[[Tensor], Tensor]) -> None:
        super().__init__(model)
        self.ends = ends
        self._states: list[Tensor] = []

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        self._states = []
        draft = super().propose(context, budget, coins)
        if self._states:
            draft.states = torch.stack(self._states, dim=1)
        return draft

    def _first_laws(self, context: Context) -> Tensor:
        laws = super()._first_laws(context)
        hidden = self._hidden(context.rows)
        if hidden is not None:
            # a row that came less far than others has read a little past its end
            last = context.lengths.clamp_max(hidden.shape[1] - 1)
            self._states.append(pick(hidden, last))
        return laws

    def _next_laws(self, tokens: Tensor, start: list[int]) -> Tensor:
        laws = super()._next_laws(tokens, start)
        hidden = self._hidden(len(tokens))
        if hidden is not None:
            self._states.append(hidden[:, -1])
        return laws

    def _hidden(self, rows: int) -> Tensor | None:
        """The last call's hidden states `[B, n, D]`; None: the model is not watched."""
        hidden: Tensor | None = getattr(self.model, "hidden", None)
        if hidden is None or not getattr(self.model, "watched", False):
            return None
        return hidden[:rows]  # rows without a condition stand behind the others

    def _stops(self, tokens: list[Tensor], law: Tensor, confidence: list[Tensor]) -> Tensor:
        return self.ends(torch.stack(tokens, dim=1))

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        super().observe(context, draft, scores, verdict)
        rows = zip(self._known, context.base, context.emitted, context.accepted, strict=True)
        # behind a draft that fell nothing of it is true
        self._known = self._reached = [
            known if kept else min(known, base - count) for known, base, count, kept in rows
        ]
