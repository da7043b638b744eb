"""Likeliest successors of tokens: as a target ranks them, and a table that remembers them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.draft import Scores


def runners_up(scores: Scores, count: int) -> Tensor:
    """The likeliest tokens `[B, N + 1, count]` by laws, and behind those by logits.

    A greedy law holds one token alone: which ones come next only its logits tell.
    """
    seen = scores.probs.topk(count)
    if scores.logits is None:
        return seen.indices
    known = seen.values > 0
    logits = scores.logits[..., : scores.probs.shape[-1]]
    fill = scores.probs.shape[-1] - logits.shape[-1]
    logits = F.pad(logits, (0, fill), value=-torch.inf)
    others = logits.masked_fill(scores.probs > 0, -torch.inf).topk(count).indices
    place = torch.arange(count, device=others.device) - known.sum(-1, keepdim=True)
    return torch.where(known, seen.indices, others.gather(-1, place.clamp_min(0)))


class SuccessorTable:
    """Likeliest successors of every token, from generation to generation.

    The rows of a batch learn apart. When the next batch begins, what they have learnt is put
    together; where several rows have learnt of one token the last row counts.
    """

    def __init__(self) -> None:
        self._whole: Tensor | None = None
        self._rows: Tensor | None = None

    def rows(self, count: int, size: tuple[int, int], device: torch.device) -> Tensor:
        """Tables `[count, *size]` to learn in, each with all that was learnt before."""
        whole = self._together()
        if whole is None or whole.shape != size or whole.device != device:
            whole = torch.zeros(size, dtype=torch.long, device=device)
        self._whole, self._rows = whole, whole.repeat(count, 1, 1)
        return self._rows

    def _together(self) -> Tensor | None:
        before, rows = self._whole, self._rows
        if before is None or rows is None:
            return None
        whole = before
        for row in rows:
            whole = torch.where((row != before).any(-1, keepdim=True), row, whole)
        return whole
