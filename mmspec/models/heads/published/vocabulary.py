"""Vocabularies of heads that draft some of the target's tokens alone."""

from __future__ import annotations

import torch
from torch import Tensor

from ....errors import InputError


class DraftVocabulary:
    """The target's token ids of a head's own ids, `[Vd]`.

    Args:
        d2t: offsets `[Vd]`: the target's id is the head's id plus its offset.
        size: the target's vocabulary V.
        t2d: whether the head drafts a token of the target `[V]`; None: not stored.

    Raises:
        InputError: the map is unfilled, leaves the target's vocabulary, names a token twice, or
            `t2d` says otherwise. Zeros may be a map of the target's first tokens: `t2d` says so.
    """

    def __init__(self, d2t: Tensor, size: int, t2d: Tensor | None = None) -> None:
        own = len(d2t)
        first = t2d is not None and torch.equal(t2d.bool().cpu(), torch.arange(size) < own)
        if own < size and not bool(d2t.any()) and not first:
            raise InputError(
                f"the draft head's vocabulary map d2t is unfilled: {own} zeros for a vocabulary of "
                f"{size}; export the head again with its map"
            )
        self.ids = d2t.long() + torch.arange(own, device=d2t.device)
        if bool(((self.ids < 0) | (self.ids >= size)).any()):
            raise InputError(f"the draft head's d2t leaves the target's vocabulary of {size}")
        if len(self.ids.unique()) != own:
            raise InputError("the draft head's d2t names a token of the target twice")
        self.size = size
        if t2d is not None:
            drafts = torch.zeros(size, dtype=torch.bool, device=d2t.device)
            drafts[self.ids] = True
            if t2d.shape != drafts.shape or not torch.equal(t2d.bool(), drafts):
                raise InputError("the draft head's t2d and d2t name different tokens")

    @classmethod
    def of(cls, ids: Tensor, size: int) -> DraftVocabulary:
        """The vocabulary of the target's tokens `ids [Vd]`, in this order."""
        drafts = torch.zeros(size, dtype=torch.bool, device=ids.device)
        drafts[ids.long().clamp(0, size - 1)] = True
        return cls(ids.long() - torch.arange(len(ids), device=ids.device), size, drafts)

    def scatter(self, logits: Tensor) -> Tensor:
        """Logits `[…, V]` over the target's tokens; a law has 0 where the head drafts none.

        That is by a number, not minus infinity, which guidance would make no number of.
        """
        least = torch.finfo(logits.dtype).min / 4
        out = logits.new_full((*logits.shape[:-1], self.size), least)
        out[..., self.ids.to(logits.device)] = logits
        return out
