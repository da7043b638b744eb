"""A coupled window whose new positions a block head foresees.

The head (DFlash, Chen et al. 2026) says the laws of a block in one call; from there on the window
is that of speculative coupled decoding (SCD, So et al. 2025).
"""

from __future__ import annotations

from torch import Tensor

from ...engine.coins import RoundCoins
from ...engine.draft import Context, Draft, Scores, Verdict
from ...methods.parts.windows import JacobiInit
from ..feature.dflash import DFlashModel
from ..sound_laws import faults, mended
from .coupled import CoupledJacobiDrafter


class ForeseenJacobiDrafter(CoupledJacobiDrafter):
    """A coupled window; a position that enters it is drawn from a block head's law there.

    A position that the target has scored moves on to the target's law. That law stands on drafted
    tokens, the head's on committed ones alone; so the first positions, in front of which a token
    has just been committed, may follow the head instead. What lies behind the head's block enters
    as `init` says.

    The output is exact: the head reads committed tokens alone, so that a law of its own does
    not depend on what else is in the window.

    Args:
        model: the head.
        places: first positions of the window that follow the head's laws in every round.
        vocab_size, init, row: see `JacobiDrafter`.
    """

    carries = True  # what is drawn lives on from round to round, see `GuardedDrafter`

    def __init__(
        self,
        model: DFlashModel,
        vocab_size: int,
        places: int = 0,
        init: JacobiInit = "previous",
        row: int = 1,
    ) -> None:
        super().__init__(vocab_size, init, row)
        self.model, self.places = model, places
        self._good: Tensor | None = None  # [B, W]: False where the head gave no law

    def start(self, context: Context) -> None:
        super().start(context)
        self.model.context = context
        self.model.start(context.rows)

    def seat(self, context: Context, rows: list[int]) -> None:
        super().seat(context, rows)
        self.model.context = context
        self.model.seat(context, rows)

    def propose(self, context: Context, budget: list[int], coins: RoundCoins) -> Draft:
        draft = super().propose(context, budget, coins)
        if draft.nodes:
            assert self._good is not None
            draft.faulty = faults(self._good, draft)
        return draft

    def entering(self, context: Context, laws: Tensor, new: Tensor) -> Tensor:
        self.model.context = context
        block, good = mended(self.model.block(context, context.tokens[:, :0]))
        laws, count = laws.to(block, copy=True), min(block.shape[1], laws.shape[1])
        told = new[:, :count] | (self._places[:count] < self.places)
        laws[:, :count] = block[:, :count].where(told[..., None], laws[:, :count])
        self._good = new.new_ones(new.shape)
        self._good[:, :count] = good[:, :count] | ~told
        return laws

    def observe(self, context: Context, draft: Draft, scores: Scores, verdict: Verdict) -> None:
        self.model.observe(context, draft, scores, verdict)
        super().observe(context, draft, scores, verdict)
