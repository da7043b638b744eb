"""Pruning of drafts within a target's call, by what its first layers say (FASER)."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from ..engine.accept.chain import token_probs
from ..engine.draft import Context, Draft, Scores
from .guided import GuidedDecoder


class Pruning:
    """Scores chains in two calls: the first layers read all nodes, all layers those that are left.

    A node stays if the early law behind its parent gives its token `least` or more, and all before
    it stay. That law is the output layer's of the first layers' states, at temperature 1 without
    warpers. Laws behind the other nodes are 0; `RestrictedRule` does not look at them.

    Counters take the two for one call of the target. The second reads the nodes that are left from
    the first layer on. `run` counts what it takes to go on from where the first call ended, of
    `whole` for drafts that are not pruned, in layers times nodes, roots included.

    Args:
        layers: how many are the first ones; None: half of them.
        least: θ.
        of: layers of the target.
    """

    def __init__(self, layers: int | None, least: float, of: int) -> None:
        self.layers, self.least, self.of = layers or max(1, of // 2), least, of
        self.run = self.whole = 0

    def score(self, model: GuidedDecoder, context: Context, draft: Draft) -> Scores:
        inputs, start = torch.cat([context.last, draft.tokens], 1), [b - 1 for b in context.base]
        if not draft.nodes:
            laws = model.extend(inputs, start)
            hidden = model.hidden if model.watched else None
            return Scores(laws, hidden, logits=model.raw, early=torch.ones_like(laws))
        warp, model.warp = model.warp, partial(torch.softmax, dim=-1)
        try:
            early = model.extend(inputs, start, draft, [range(self.layers)] * len(inputs))
        finally:
            model.warp = warp
        stays = token_probs(early[:, :-1], draft.tokens) >= self.least
        left = (stays & draft.live()).cumprod(1).sum(1)
        counts = torch.stack([draft.lengths, left], 1).tolist()
        real = [c for c, over in zip(counts, context.finished, strict=True) if not over]
        for nodes, kept in real:
            self.whole += self.of * (nodes + 1)
            self.run += self.layers * (nodes + 1) + (self.of - self.layers) * (kept + 1)
        width = 1 + max((kept for _, kept in real), default=0)
        laws = model.extend(inputs[:, :width], start)

        def filled(x: Any) -> Any:
            return x if x is None else F.pad(x, (0, 0, 0, inputs.shape[1] - width))

        hidden = filled(model.hidden) if model.watched else None
        return Scores(filled(laws), hidden, logits=filled(model.raw), early=early)
