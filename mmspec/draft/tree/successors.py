"""Likeliest successors of tokens: as a target ranks them, and a table that remembers them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.draft import Scores
from ...errors import InputError
from ...models.guided import GuidedDecoder

_COLUMNS = 128  # of a prefix whose logits are there at once


def runners_up(scores: Scores, count: int) -> Tensor:
    """The likeliest tokens `[B, N + 1, count]` by laws, and behind those by logits.

    A greedy law holds one token alone: which ones come next only its logits tell.
    """
    seen = scores.probs.topk(count)
    if scores.logits is None:
        return seen.indices
    known = seen.values > 0
    if len(known) == 1 and known.device.type == "cpu" and bool(known.all()):
        return seen.indices
    logits = scores.logits[..., : scores.probs.shape[-1]]
    fill = scores.probs.shape[-1] - logits.shape[-1]
    logits = F.pad(logits, (0, fill), value=-torch.inf)
    others = logits.masked_fill(scores.probs > 0, -torch.inf).topk(count).indices
    place = torch.arange(count, device=others.device) - known.sum(-1, keepdim=True)
    return torch.where(known, seen.indices, others.gather(-1, place.clamp_min(0)))


def runners_up_of_prefix(
    target: GuidedDecoder, rows: list[int], count: int, vocab_size: int
) -> Tensor | None:
    """The likeliest of `vocab_size` tokens `[len(rows), n, count]` behind columns just read.

    Those are the ones that `start` and `seat` read, the prefix's last but one. None: nothing was
    read, or the model does more with its hidden states than its output layer does.
    """
    hidden = target.hidden
    if hidden is None or not hidden.shape[1] or target.copies > 1:
        return None
    try:
        best = [
            target.decoder.logits(part)[..., :vocab_size].topk(count).indices
            for part in hidden[rows].split(_COLUMNS, dim=1)
        ]
    except InputError:
        return None
    return torch.cat(best, dim=1)


class SuccessorTable:
    """Likeliest successors of every token, from generation to generation.

    The rows of a batch learn apart. When the next batch begins, what they have learnt is put
    together; where several rows have learnt of one token the last row counts.
    """

    def __init__(self) -> None:
        self._whole: Tensor | None = None
        self._learnt: Tensor | None = None  # `_whole`, and what rows have learnt that are over
        self._rows: Tensor | None = None

    def rows(self, count: int, size: tuple[int, int], device: torch.device) -> Tensor:
        """Tables `[count, *size]` to learn in, each with all that was learnt before."""
        whole = self._together()
        if whole is None or whole.shape != size or whole.device != device:
            whole = torch.zeros(size, dtype=torch.long, device=device)
        self._whole = self._learnt = whole
        self._rows = whole.repeat(count, 1, 1)
        return self._rows

    def begin(self, rows: list[int]) -> None:
        """Let other samples begin in these rows, with what was learnt before the generation.

        What their rows have learnt until now is for the next generation.
        """
        assert self._rows is not None, "rows() comes first"
        assert self._whole is not None
        for row in rows:
            self._learn(self._rows[row])
            self._rows[row] = self._whole

    def _together(self) -> Tensor | None:
        for row in () if self._rows is None else self._rows:
            self._learn(row)
        return self._learnt

    def _learn(self, row: Tensor) -> None:
        """Join what a row has learnt in this generation."""
        assert self._whole is not None
        assert self._learnt is not None
        changed = (row != self._whole).any(-1, keepdim=True)
        self._learnt = torch.where(changed, row, self._learnt)
