"""DSpark and Domino: a block is denoised in one call, and its tokens are drawn one by one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.draft import Context, Draft
from ...errors import InputError
from ...models.guided import GuidedDecoder
from ...models.heads.published.correction import Correction
from ...models.heads.published.decoder import PublishedDFlashDecoder
from .dflash import DFlashModel
from .feature_model import TokenFeatureModel


class CorrectedModel(DFlashModel, TokenFeatureModel):
    """A DFlash head with a correction, as the draft model of chains.

    The first call of a round denoises the block. Every call adds to the logits of the next place
    what the correction makes of the token in front of it, so that the law of a token is known once
    that token is drawn.

    Args:
        head: the network.
        correction: its correction.
        target, warp: see `FeatureModel`.

    Attributes:
        estimate: the head's own estimate `[B]` that the token of the last law stands if those in
            front of it do (DSpark's confidence); None: it has none.
    """

    decoder: PublishedDFlashDecoder
    estimate: Tensor | None = None

    def __init__(
        self,
        head: PublishedDFlashDecoder,
        correction: Correction,
        target: GuidedDecoder,
        warp: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__(head, target, warp)
        self.correction = correction
        self._slots = self._state = torch.zeros(0)  # [R, K, H], [R, S]
        self._place = 0

    def _read(self, context: Context | None, tokens: Tensor, start: list[int]) -> Tensor:
        assert context is not None
        self._slots = self._denoised(context)
        self._state = self._slots.new_zeros(len(self._slots), self.correction.state_size)
        self._place = 0
        law = self._corrected(*self._in_front(context))
        return law.expand(-1, tokens.shape[1], -1)  # the loop asks for the last one

    def _next(self, tokens: Tensor, start: list[int]) -> Tensor:
        if self.context is None:
            raise ValueError("a head with a correction drafts in a generation alone")
        return self._corrected(tokens, torch.zeros_like(tokens, dtype=torch.bool))

    def _grow(self, tokens: Tensor, start: list[int], draft: Draft) -> Tensor:
        raise InputError("a head with a correction drafts chains; choose a drafter of chains")

    def _corrected(self, tokens: Tensor, unknown: Tensor) -> Tensor:
        """Laws `[B, 1, V]` of the next place, behind `tokens [B, 1]`; `unknown` ones add none."""
        embedded = self._embedded(tokens, unknown)[:, 0]
        copies = len(embedded) // len(tokens)
        ids, nothing = (t[:, 0].repeat(copies) for t in (tokens, unknown))
        slot = self._slots[:, self._place]
        state, more = self.correction.step(self._state, ids, embedded, slot)
        if self.correction.reads_ids:
            state = torch.where(nothing[:, None], self._state, state)
        self._state = state
        if not self.correction.reads_ids:
            nothing = torch.zeros_like(nothing)
        if self._place < self.correction.first:
            nothing = torch.ones_like(nothing)
        more = more.masked_fill(nothing[:, None], 0.0)
        self._place += 1
        confidence = self.decoder.network.confidence
        if confidence is not None:
            own = slice(len(tokens))  # the conditional rows
            self.estimate = confidence(self.correction.known(ids[own], slot[own]))
        return self._warped(self.decoder.spread(self.decoder.own_logits(slot) + more)[:, None])
