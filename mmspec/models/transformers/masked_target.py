"""A masked language model that answers: at block size 1 it is autoregressive (S2D2).

Han et al. 2026, "S2D2: Fast Decoding for Diffusion LLMs via Training-Free Self-Speculation". The
law behind a text is that of one masked place behind it. So the weights that fill a block in
parallel also judge it, and are a target as any other.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...engine.draft import Context, Draft
from ...errors import InputError
from ..call_masks import tree_mask
from ..guided import GuidedDecoder
from ..masked_folders import MASK
from ..running_rows import LayersOfRows
from .causal import CausalDecoder
from .masked import MaskedForm, MaskedModel


def target_form(decoder: CausalDecoder) -> MaskedForm | None:
    """The form of a masked model that can answer; None: the model is no masked one.

    Raises:
        InputError: it is a masked model, and can only draft.
    """
    if getattr(decoder.config, MASK, None) is None:
        return None
    name, form = type(decoder.model).__name__, MaskedForm.of(decoder.model)
    instead = "it drafts for a model of its words, by method 'deer'"
    if form.reading == "whole":
        raise InputError(
            f"{name} is a masked model that reads all of its text both ways, so that no text of it "
            f"stays in a cache; {instead}"
        )
    if form.separator is not None:
        raise InputError(
            f"{name} is a masked model with a separator in front of its places, and does not "
            f"answer; {instead}"
        )
    if decoder.recurrent.modules:
        raise InputError(
            f"{name} keeps a state of its text, which masked places would change; take another"
        )
    return form


def answering(model: GuidedDecoder) -> GuidedDecoder:
    """The network as what answers: a masked model by masked places, any other as it is.

    Shifted logits of a place are those at the token in front of it, which does not see the place:
    such a model answers as it is, too.
    """
    decoder = model.decoder
    form = target_form(decoder) if isinstance(decoder, CausalDecoder) else None
    return model if form is None or form.shifted else MaskedTarget(model, form.mask)


class MaskedTarget(GuidedDecoder):
    """A masked model at block size 1: the law behind a token is that of a masked place behind it.

    A call of n tokens has 2n columns: the tokens, which read what is in front of them, and behind
    each of them a mask, which reads what its token reads, the token and itself. Masks stand in
    slots behind the tokens', where the next call writes anew: the cache keeps tokens alone.

    Args:
        model: the network, which has not started.
        mask: token of a masked place.
    """

    entries = 2
    returns = True  # masks stand behind the tokens of all rows

    def __init__(self, model: GuidedDecoder, mask: int) -> None:
        super().__init__(*model.again())
        self.mask = mask

    def reserve(self, scratch: int) -> None:
        super().reserve(2 * scratch + 1)  # a call's tokens are the scratch and one, as its masks

    def extend(
        self, tokens: Tensor, start: list[int], draft: Draft | None = None, use: LayersOfRows = None
    ) -> Tensor:
        if draft is not None and (draft.parents is None or not draft.nodes):
            draft = None
        n = tokens.shape[1]
        first = torch.tensor(start, device=tokens.device)[:, None] + self.offset
        slots = first + self.keys[:n]
        keys = self.keys[: max(start[row] for row in self.running.left) + self.offset + n]
        if draft is None:
            return self._behind(tokens, slots, slots, keys <= slots[..., None], use)
        turns = self._places(start, n, draft) + self.offset
        return self._behind(tokens, slots, turns, tree_mask(draft, first, keys), use)

    def extend_at(
        self, tokens: Tensor, positions: Tensor, reach: int, known: Tensor | None = None
    ) -> Tensor:
        assert known is None, "entries of text are all known"
        slots, keys = positions + self.offset, self.keys[: reach + self.offset + 1]
        return self._behind(tokens, slots, slots, keys <= slots[..., None])

    def _behind(
        self, tokens: Tensor, slots: Tensor, turns: Tensor, seen: Tensor, use: LayersOfRows = None
    ) -> Tensor:
        """Laws `[B, n, V]` of the masked places behind `tokens [B, n]`.

        Args:
            slots, turns: of the tokens, see `_at`.
            seen: what each may read `[B, n, length]`.
        """
        assert self.cache is not None, "start() comes first"
        n, length = seen.shape[1:]
        both = torch.cat([tokens, torch.full_like(tokens, self.mask)], 1)
        condition = torch.cat([slots < self.offset, torch.zeros_like(slots, dtype=torch.bool)], 1)
        own = torch.eye(n, dtype=torch.bool, device=tokens.device).expand(len(tokens), -1, -1)
        # tokens read no mask, and each mask itself
        seen = torch.cat([torch.cat([seen, masks], 2) for masks in (own & False, own)], 1)
        behind = self.keys[length : length + n].expand(len(tokens), -1)
        slots, turns = torch.cat([slots, behind], 1), torch.cat([turns, turns + 1], 1)
        runs = self.running.layers(use, self.layers)
        out = self._at(self._embedded(both, condition), slots, turns, length + n, seen, runs)
        return self._warped(self.running.of_all(out[:, n:]))


class OwnBlocks(MaskedModel):
    """The target's blocks, over the target's own cache: no text is read twice.

    A block stands behind the last committed token, where the target's next call writes anew.

    Args:
        target: a masked model that answers, which has not started.
        size: masked places K of a call.
        law: makes laws of logits; None: that of the target.
    """

    def __init__(
        self, target: GuidedDecoder, size: int, law: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        super().__init__(target, size)
        self.target, self.warp = target, law or self.warp

    def start(self, rows: int) -> None:
        if self.target.cache is None:
            self.target.start(rows)
        self.cache, self.running = self.target.cache, self.target.running

    def seat(self, context: Context, rows: list[int]) -> None:
        self._sit(context.samples or [])

    def read(
        self,
        text: Tensor,
        ends: list[int],
        known: list[int],
        filled: Tensor | None = None,
        left: Tensor | None = None,
    ) -> Tensor:
        assert self.cache is not None, "start() comes first"
        before, self.cache.contained = self.cache.contained, True  # its faults are not the target's
        try:
            return super().read(text, ends, known, filled, left)
        finally:
            self.cache.contained = before
