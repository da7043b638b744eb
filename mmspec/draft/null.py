"""The drafter that proposes nothing: plain decoding in the same loop."""

from __future__ import annotations

import torch

from ..engine.coins import RoundCoins
from ..engine.draft import Context, Draft
from ..engine.laws import OneHot
from ..engine.protocols import Drafter


class NullDrafter(Drafter):
    """Proposes nothing: each target call yields one token, the baseline of every speed-up."""

    def start(self, context: Context) -> None:
        none = context.tokens[:, :0]
        self._draft = Draft(none, torch.zeros_like(context.lengths), OneHot())

    def seat(self, context: Context, rows: list[int]) -> None:
        """Forget nothing."""

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        return self._draft
