"""FLASH (Wang et al. 2025): EAGLE-1's layers; pictures are pooled, a call says several tokens.

`softmax(A·h)·h` pools the hidden states h of a picture's columns with latent queries A (section
3.2). From the hidden state that the layer gives, one slot a token tells those of the next K
(section 3.3): the first is the state itself, the others `f + SiLU(W_k f)`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..columns import Columns, Look
from .eagle1 import EagleNetwork
from .sizes import HeadSizes


class FlashNetwork(EagleNetwork):
    """The network; arguments as of `EagleNetwork`.

    Hidden states of a picture are those in front of its columns, as everywhere in a head.

    Args:
        latents: columns that a picture keeps at most, its last ones.
        block: K, tokens that a call drafts.
    """

    joins_pictures = False

    def __init__(
        self,
        sizes: HeadSizes,
        vocab_size: int | None,
        layers: int = 1,
        bias: bool = True,
        latents: int = 64,
        block: int = 5,
    ) -> None:
        super().__init__(sizes, vocab_size, layers, bias)
        width, self.block = sizes.hidden_size, block
        self.latent_queries = nn.Parameter(torch.empty(latents, width))
        self.further = nn.Linear(width, (block - 1) * width, bias=False)

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
        further = self.further(hidden).unflatten(-1, (-1, self.latent_queries.shape[1]))
        first = hidden.unsqueeze(-2)
        return torch.cat([first, first + F.silu(further)], dim=-2)
