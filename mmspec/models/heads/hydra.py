"""Hydra's heads: each drafts one token further, in the light of those drafted before it.

Head i is a small network over `[h; e(x_0); …; e(x_{i−1})]`: the hidden state in front of the last
committed token x_0, that token, and the drafted ones (Ankner et al. 2024, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from . import losses
from .base import DraftHead, HeadBatch
from .columns import Columns


class HydraHead(DraftHead):
    """Heads without attention: the hidden state has seen pictures and text.

    `h + W_2 SiLU(W_1 [h; e(x_0); …])`, normed, is what the i-th token's law is made of by the
    target's output layer.

    Args:
        heads: tokens that can be drafted ahead.
    """

    @register_to_config
    def __init__(self, target: dict[str, Any], sizes: dict[str, Any], heads: int = 4) -> None:
        super().__init__(target, sizes)
        dim = self.dim
        self.first = nn.ModuleList(nn.Linear((2 + n) * dim, dim, bias=False) for n in range(heads))
        self.second = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(heads))
        self.norm = self.rms_norm()

    def ahead(self, before: Tensor, path: Tensor) -> Tensor:
        """The hidden state `[…, D]` that the token behind `path` is drawn from.

        Args:
            before: in front of the path, `[…, D]`.
            path: embeddings from the last committed token on, `[…, i, D]`: head i answers.
        """
        head = path.shape[-2] - 1
        joined = torch.cat([before, path.flatten(-2)], dim=-1)
        return self.norm(before + self.second[head](F.silu(self.first[head](joined))))

    def forward(self, columns: Columns) -> list[Tensor]:
        """Hidden states `[R, S, D]` by head, of drafts that begin at every column."""
        embedded, before = columns.embedded, columns.before
        path, levels = embedded[:, :, None], []
        for n in range(len(self.first)):
            if n:
                following = F.pad(embedded[:, n:], (0, 0, 0, n))[:, :, None]
                path = torch.cat([path, following], dim=2)
            levels.append(self.ahead(before, path))
        return levels

    def loss(self, batch: HeadBatch) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy to the target's laws, the mean over heads."""
        return block_loss(self.forward(batch.columns()), batch)


def block_loss(
    levels: list[Tensor], batch: HeadBatch, columns: Tensor | None = None
) -> tuple[Tensor, dict[str, float]]:
    """Cross-entropy to the target's laws of the 1st, 2nd, … token ahead, the mean over them.

    Args:
        levels: per token, hidden states `[R, A, D]` of drafts.
        batch: what the target says.
        columns: where the drafts begin `[R, A]`; None: at every column.
    """
    pairs = []
    for n, hidden in enumerate(levels, start=1):
        features, drafted = batch.ahead(n)
        if columns is not None:
            features = features.gather(1, columns[..., None].expand_as(hidden))
            drafted = drafted.gather(1, columns)
        pairs.append((hidden[drafted], features[drafted]))

    return losses.mean_loss(
        pairs, batch.output, lambda _, logits: (losses.soft_cross_entropy(*logits),)
    )
