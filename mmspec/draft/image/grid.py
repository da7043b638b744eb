"""Drafts for pictures whose layout forces some tokens: what is certain is not left to a guess."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...engine.laws import Categorical, WithoutReplacement
from ...engine.protocols import Drafter, DraftsAhead, close


class GridDrafter:
    """Whatever the inner drafter proposes, a node at a forced position is the forced token.

    Its law there is a point mass, as the target's is: such nodes always stand. Which nodes they are
    follows from their depth alone, so all other nodes are drawn as before. The inner drafter is
    told what was proposed in the end. One whose laws are the target's own, as a part of the
    target's are, knows the forced tokens already.

    Args:
        drafter: knows nothing of forced tokens.
        forced: `[L]`, the token of every position, -1 where any may stand: `TokenGrid.forced`.
    """

    def __init__(self, drafter: Drafter, forced: Tensor) -> None:
        self.drafter = drafter
        self.carries = getattr(drafter, "carries", False)  # see `GuardedDrafter`
        self.forced = F.pad(forced, (0, 1), value=-1)  # and one place behind the picture

    def start(self, context: Context) -> None:
        self.forced = self.forced.to(context.tokens.device)
        self.drafter.start(context)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        return self._certain(self.drafter.propose(context, budget, coins), context.lengths)

    def ahead(
        self, context: Context, draft: Draft, coins: RoundCoins
    ) -> Callable[[], Draft | None] | None:
        begun = None
        if isinstance(self.drafter, DraftsAhead):
            begun = self.drafter.ahead(context, draft, coins)
        behind = context.lengths + draft.lengths

        def guess() -> Draft | None:
            found = begun and begun()
            return found and self._certain(found, behind)

        return begun and guess

    def close(self) -> None:
        close(self.drafter)

    def _certain(self, draft: Draft, first: Tensor) -> Draft:
        """The draft with the forced tokens; its first level stands at the positions `first [B]`."""
        if not draft.nodes:
            return draft
        place = first[:, None] + draft.depths()
        forced = self.forced[place.clamp_max(len(self.forced) - 1)]  # [B, N]
        certain = forced >= 0
        law = draft.law
        if isinstance(law, Categorical | WithoutReplacement):
            point = F.one_hot(forced.clamp_min(0), law.probs.shape[-1]).to(law.probs)
            law = type(law)(point.where(certain[..., None], law.probs))
        return replace(draft, tokens=forced.where(certain, draft.tokens), law=law)

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.drafter.observe(context, draft, scores, verdict)
