"""Medusa (Cai et al. 2024): heads on the target's last hidden state, one a token ahead.

Head k says the token k + 2 places behind the hidden state's own: the target itself says the next.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """`x + SiLU(W x + b)`."""

    def __init__(self, width: int, bias: bool = True) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


class MedusaNetwork(nn.ModuleList):
    """The heads, by number, as in `medusa_lm_head.pt`: blocks and an output layer each.

    Args:
        heads: how many.
        blocks: residual blocks of a head.
        width: of the target's hidden states H.
        vocab_size: V.
        bias: the blocks have biases.
    """

    def __init__(
        self, heads: int, blocks: int, width: int, vocab_size: int, bias: bool = True
    ) -> None:
        super().__init__(
            nn.Sequential(
                *(ResidualBlock(width, bias) for _ in range(blocks)),
                nn.Linear(width, vocab_size, bias=False),
            )
            for _ in range(heads)
        )

    @property
    def count(self) -> int:
        """Number of heads."""
        return len(self)

    def head(self, number: int) -> nn.Module:
        """A head, which makes logits `[…, V]` of hidden states `[…, H]`."""
        return self[number]

    def forward(self, hidden: Tensor) -> list[Tensor]:
        """Logits `[…, V]` of every head, of the target's last hidden states `[…, H]`."""
        return [head(hidden) for head in self]
