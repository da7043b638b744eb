"""SpecKV: a cache keeps the entries that a likely answer attends to (Galim et al. 2025).

A draft model writes a whole answer ahead. The target reads it behind the prompt, once, and what its
queries attend to of the prompt is what a true answer will need. Published: the largest softmax
weight over the last 32 tokens of the prompt and all that was written ahead, and over the heads that
share keys; of 7 neighbours each has the largest. Keys stay turned by their own positions.

Without anything written ahead, and with means in place of the largest weights, it is SnapKV (Li et
al. 2024), which asks the prompt's own end.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from .base import wide


class SpecKv:
    """Scores of entries by the attention that they get.

    Args:
        window: last entries, in front of a prompt's last token, that always stay, and ask.
        kernel: neighbours, an odd number, of which each has the largest score.
        mean: the mean over queries and heads that share keys, in place of the largest weight.
    """

    looks = True

    def __init__(self, window: int = 32, kernel: int = 7, mean: bool = False) -> None:
        self.window, self.kernel, self.mean = window, kernel, mean

    def scores(
        self, layer: int, heads: int, open_: Tensor, weights: Tensor | None, asks: Tensor
    ) -> Tensor:
        """Scores of a layer's entries `[R, heads, T]`; those that are not open have none.

        Args:
            layer: its number.
            heads: that store keys.
            open_: entries that may leave `[R, T]`.
            weights: attention weights of its queries `[R, H, Q, T]`.
            asks: queries that count `[R, Q]`.
        """
        assert weights is not None
        paid = wide(weights).masked_fill(~asks[:, None, :, None], 0.0)
        paid = paid.unflatten(1, (heads, -1)).flatten(2, 3)  # [R, heads, share · Q, T]
        if self.mean:
            told = asks.sum(1) * (paid.shape[2] // asks.shape[1])
            best = paid.sum(2) / told.clamp_min(1)[:, None, None]
        else:
            best = paid.amax(2)
        best = best.masked_fill(~open_[:, None], 0.0)
        return F.max_pool1d(best, self.kernel, stride=1, padding=self.kernel // 2)
