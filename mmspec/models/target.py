"""A token model as the engine's `Target`."""

from __future__ import annotations

import torch

from ..engine.types import Context, Draft, Scores, Verdict
from .guided import GuidedDecoder


class TokenTarget:
    """Scores the last committed token and a whole draft in one call.

    The last committed token is not in the cache yet: it is the root of every call, so that a call
    of n drafted tokens yields n + 1 laws.
    """

    def __init__(self, model: GuidedDecoder) -> None:
        self.model = model

    def start(self, rows: int) -> None:
        self.model.start(rows)

    def score(self, context: Context, draft: Draft) -> Scores:
        inputs = context.last
        if draft.nodes:
            inputs = torch.cat([inputs, draft.tokens], dim=1)
        return Scores(self.model.extend(inputs, [b - 1 for b in context.base], draft))

    def commit(self, context: Context, draft: Draft, verdict: Verdict) -> None:
        if verdict.path is not None:
            self.model.keep([b - 1 for b in context.base], verdict.path)
