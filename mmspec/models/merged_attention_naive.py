"""Slow twin of `merged_attention`: one softmax over all entries, a query at a time."""

from __future__ import annotations

import torch
from torch import Tensor


def attention_naive(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention `[R, heads, N, D]`; arguments as of `merged_attention`, mask `[R, N, length]`."""
    out = torch.empty_like(queries)
    rows, heads, count, width = queries.shape
    share = heads // keys.shape[1]
    for row in range(rows):
        for head in range(heads):
            k, v = keys[row, head // share], values[row, head // share]
            for n in range(count):
                scores = k @ queries[row, head, n] / width**0.5 + mask[row, n]
                out[row, head, n] = scores.softmax(0) @ v
    return out
