"""Batches that draft heads learn from: texts with pictures, and what the frozen target says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ...models.heads.columns import Columns, Images


@dataclass
class HeadBatch:
    """Texts with pictures, and what the frozen target says of them.

    Attributes:
        embedded: its inputs `[R, S, D]`, prompt and answer.
        features: its last hidden states at them, behind the last norm `[R, S, D]`.
        states: the hidden states that the head reads `[R, S, A · D]`, see `PublishedHead.reads`; of
            most heads the features.
        mask: `[R, S]`, False where padded.
        answer: `[R, S]`, columns of what it has answered: those are drafted.
        images: where the pictures are.
        output: its output layer, logits `[…, V]` of hidden states `[…, D]`.
        embed: its inputs `[…, D]` of tokens.
    """

    embedded: Tensor
    features: Tensor
    states: Tensor
    mask: Tensor
    answer: Tensor
    images: Images | None
    output: Callable[[Tensor], Tensor]
    embed: Callable[[Tensor], Tensor]

    def columns(self, known: Tensor) -> Columns:
        """The columns that a head reads, with the hidden states `known [R, S, H]` in them."""
        before = F.pad((known * self.mask[..., None])[:, :-1], (0, 0, 1, 0))
        return Columns(self.embedded, before, self.mask, self.mask & ~self.answer, self.images)

    def ahead(self, n: int) -> tuple[Tensor, Tensor]:
        """The features `[R, S, D]` that the n-th token behind every column is drawn from.

        Beside them: whether that token, and those between, are of the answer `[R, S]`.
        """
        drafted = torch.ones_like(self.answer)
        for step in range(1, n + 1):
            drafted &= F.pad(self.answer[:, step:], (0, min(step, self.answer.shape[1])))
        return F.pad(self.features[:, n - 1 :], (0, 0, 0, n - 1)), drafted
