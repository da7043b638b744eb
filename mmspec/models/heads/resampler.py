"""One cross-attention of learned queries over a picture's embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Resampler(nn.Module):
    """n learned queries read M pictures.

    Args:
        dim, heads: width D of the embeddings, and attention heads.
        queries: n.
    """

    def __init__(self, dim: int, heads: int, queries: int) -> None:
        super().__init__()
        self.heads = heads
        width = dim // heads
        self.queries = nn.Parameter(torch.randn(queries, heads, width) * width**-0.5)
        self.kv = nn.Linear(dim, 2 * dim, bias=False)
        self.out = nn.Linear(dim, dim, bias=False)

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        """`[M, n, D]` of embeddings `[M, P, D]`, which are real where `real [M, P]`."""
        keys, values = self.kv(x).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        queries = self.queries.transpose(0, 1).expand(len(x), -1, -1, -1)
        found = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=real[:, None, None, :]
        )
        return self.out(found.transpose(1, 2).flatten(2))
