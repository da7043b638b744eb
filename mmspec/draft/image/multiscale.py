"""A small picture of the same family, scaled up, drafts the large one (MuLo-SD, Peruzzo 2026)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft
from ...engine.laws import OneHot
from ...engine.protocols import Drafter


class MultiScaleDrafter(Drafter):
    """Proposes the tokens of a picture that was drawn small and scaled up, part by part.

    The small picture is drawn once, when the first draft is asked for. Nothing of it depends on
    what the target says, so to the target its tokens are chosen, q = 1: an exact rule is exact on
    them.

    Args:
        picture: draws a batch of small pictures and scales them up: tokens `[B, L]` of the large
            ones.
    """

    def __init__(self, picture: Callable[[], Tensor]) -> None:
        self.picture = picture
        self._plan: Tensor | None = None

    def start(self, context: Context) -> None:
        self._plan = None

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        if self._plan is None:
            self._plan = self.picture()
        device = self._plan.device
        lengths = torch.tensor(budget, device=device)
        positions = torch.arange(max(budget), device=device) + context.lengths[:, None]
        tokens = self._plan.gather(1, positions.clamp_max(self._plan.shape[1] - 1))
        return Draft(tokens, lengths, OneHot(), positions=positions)
