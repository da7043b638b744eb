"""ViSpec's head: a picture becomes a vector or two, and one more for all that is said of it.

Learned queries read the picture by one cross-attention. The first n − 1 outputs take its place, in
its last columns; the last is a global vector g in every later input of text,
`fc([e; W[h; g]])` (Kang et al. 2025, section 3).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from .columns import Columns, Look
from .feature import FeatureHead


class Resampler(nn.Module):
    """n learned queries read the embeddings of M pictures by one cross-attention."""

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


class ViSpecHead(FeatureHead):
    """Head that resamples pictures and adds a global vector g; see `FeatureHead`.

    g is that of the picture which ended last in front of a column, zero before the first.

    Args:
        queries: n, two or more.
    """

    @register_to_config
    def __init__(self, target: dict[str, Any], sizes: dict[str, Any], queries: int = 2) -> None:
        if queries < 2:
            raise ValueError(f"queries must be 2 or more, not {queries}: the last is no column")
        super().__init__(target, sizes)
        self.queries = queries
        self.resampler = Resampler(self.dim, self.sizes.n_head, queries)
        self.globally = nn.Linear(2 * self.dim, self.dim, bias=False)

    def init_weights(self, std: float = 0.02) -> None:
        """Initialize as EAGLE does; hidden states pass by g for a start."""
        super().init_weights(std)
        with torch.no_grad():
            self.globally.weight.copy_(torch.eye(self.dim, 2 * self.dim))

    def look(self, columns: Columns) -> Look:
        images, mask = columns.images, columns.mask
        if images is None:
            return Look(context=columns.embedded.new_zeros(len(mask), mask.shape[1] + 1, self.dim))
        seen = self.resampler(images.picked(columns.embedded), images.real())
        values, keep = images.at_end(seen[:, :-1], self.queries - 1)
        nothing = torch.zeros_like(seen[:1, -1])
        context = F.embedding(images.latest(mask) + 1, torch.cat([nothing, seen[:, -1]]))
        return Look(
            images.put(keep, mask), images.put(values, torch.zeros_like(columns.embedded)), context
        )

    def joined(self, embedded: Tensor, before: Tensor, context: Tensor | None = None) -> Tensor:
        assert context is not None
        both = torch.cat([before, context.expand_as(before)], dim=-1)
        return self.fc(torch.cat([embedded, self.globally(both)], dim=-1))
