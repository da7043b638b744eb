"""FLASH's head: pictures pooled by latent queries, several tokens a call (Wang et al. 2025).

`softmax(A·h)·h` pools the hidden states h of a picture's columns with latent queries A (section
3.2). From the hidden state that the layer gives, one slot a token tells those of the next K
(section 3.3): the first is the state itself, the others `f + SiLU(W_k f)`.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from .columns import Columns, Look
from .feature import FeatureHead


class FlashHead(FeatureHead):
    """Head that pools pictures and drafts several tokens a call; see `FeatureHead`.

    Hidden states of a picture are those in front of its columns, as everywhere in a head.

    Args:
        latents: columns that a picture keeps at most, its last ones.
        block: K, tokens that a call drafts.
    """

    @register_to_config
    def __init__(
        self, target: dict[str, Any], sizes: dict[str, Any], latents: int = 64, block: int = 5
    ) -> None:
        super().__init__(target, sizes)
        self.block_size = block
        self.latent_queries = nn.Parameter(torch.randn(latents, self.dim) * 0.02)
        self.further = nn.Linear(self.dim, (block - 1) * self.dim, bias=False)

    def init_weights(self, std: float = 0.02) -> None:
        """Initialize as EAGLE does; every slot begins as the first."""
        super().init_weights(std)
        nn.init.zeros_(self.further.weight)

    def look(self, columns: Columns) -> Look:
        images = columns.images
        if images is None:
            return Look()
        hidden = images.picked(columns.before)
        scores = (self.latent_queries @ hidden.transpose(1, 2)).masked_fill(
            ~images.real()[:, None], -torch.inf
        )
        pooled = scores.softmax(-1) @ hidden  # [M, latents, D]
        counts = images.counts().clamp_max(len(self.latent_queries))
        values, keep = images.at_end(pooled, counts)
        return Look(
            images.put(keep, columns.mask), images.put(values, torch.zeros_like(columns.embedded))
        )

    def slots(self, hidden: Tensor) -> Tensor:
        """Hidden states `[…, K, D]` of the next K tokens, of what the layer gives `[…, D]`."""
        further = self.further(hidden).unflatten(-1, (-1, self.dim))
        first = hidden.unsqueeze(-2)
        return torch.cat([first, first + F.silu(further)], dim=-2)
