"""A layer that reads from hidden states what patches of a picture show, and its loss.

Dense labels teach in minutes what captions and answers teach in hours, or never. Most image tokens
tell of a background, and their loss drowns what a caption decides: which object comes where. And a
tower that says what a patch shows, but not where it is, leaves a language model no way to learn
what is left of what. The layer is trained along and not shipped.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EMPTY = 0.1  # weight of patches that show nothing, most of them, for targets that draw


class PatchReader(nn.Module):
    """Reads labels of patches from hidden states of width D.

    Args:
        dim: D.
        labels: number of names of each label, with 0 for none; a linear layer for each, since some
            pairs of names are never trained on.
        nothing: weight of a patch without a label: most have none.
    """

    def __init__(self, dim: int, labels: Mapping[str, int], nothing: float = 1.0) -> None:
        super().__init__()
        self.sizes, self.nothing = list(labels.values()), nothing
        self.output = nn.Linear(dim, sum(self.sizes))

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Logits `[..., K]` of each label, of hidden states `[..., D]`."""
        return list(self.output(hidden).split(self.sizes, dim=-1))

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy in nats a patch of `labels [..., n]`, summed over the n labels."""
        losses = []
        for logits, wanted in zip(self(hidden), labels.unbind(-1), strict=True):
            weight = logits.new_ones(logits.shape[-1], dtype=torch.float32)
            weight[0] = self.nothing
            losses.append(F.cross_entropy(logits.float().flatten(0, -2), wanted.flatten(), weight))
        return torch.stack(losses).sum()
