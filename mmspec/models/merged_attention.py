"""Attention of a draft in two parts, one to the text in front of it and one to itself.

The text in front needs no mask, and its part none of the work that masks are. The parts are merged
by the logarithms of their sums of weights: LongSpec's hybrid attention (Yang et al. 2025), which
does for every tree. On a processor it pays in long texts alone, and little
(`python -m benchmarks micro --only merged_attention`); elsewhere it is not used.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

LONG, WIDE = 8192, 16  # entries that all queries read, and queries, from which on it pays

# attention that tells sums, which torch's public function does not: on a processor
_told = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu


def open_entries(mask: Tensor) -> int:
    """Number of first entries that all queries read, each beside one more at least.

    A part of which a query reads nothing has no sum of weights.

    Args:
        mask: added to the scores `[…, length]`.
    """
    seen = (mask == 0).flatten(0, -2)
    first = int(seen.all(0).long().cumprod(0).sum())
    last = (seen * torch.arange(seen.shape[1], device=seen.device)).amax(1)
    return min(first, int(last.amin()))


def worth_merging(mask: Tensor | None, queries: int, length: int) -> int:
    """Entries to attend to without the mask: the first of `length`; 0 if it does not pay.

    Args:
        mask: of the call; None: it needs no parts.
        queries: N.
        length: of the entries.
    """
    if mask is None or mask.device.type != "cpu" or queries < WIDE or length < LONG:
        return 0
    entries = open_entries(mask)
    return entries if entries >= LONG else 0


def merged_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, entries: int = 0
) -> Tensor:
    """Attention `[R, heads, N, D]`, the same with and without parts but for rounding.

    With o and l of both parts, each l the logarithm of a part's sum of weights:
    `out = w · o_front + (1 - w) · o_rest`, `w = σ(l_front - l_rest)`.

    Args:
        queries: `[R, heads, N, D]`.
        keys, values: `[R, kv_heads, length, D]`; heads in a row share those of one.
        mask: `[R or 1, 1, N, length]` or `[N, length]`, added to the scores; None: none is hidden.
        entries: the first ones, with a part of their own, see `open_entries`; 0: there is one part.
    """
    heads, shared = queries.shape[1], keys.shape[1]
    if mask is None or not entries:
        grouped = heads != shared
        return F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=grouped)
    # heads that share keys stand behind each other, so that nothing is copied
    share, count = heads // shared, queries.shape[2]
    q = queries.reshape(len(queries), shared, share * count, -1)
    front, in_front = _told(q, keys[:, :, :entries], values[:, :, :entries])
    rest = mask[..., entries:].repeat(*[1] * (mask.ndim - 2), share, 1)
    own, in_own = _told(q, keys[:, :, entries:], values[:, :, entries:], attn_mask=rest)
    weight = torch.sigmoid(in_front - in_own)[..., None].to(own.dtype)
    return torch.lerp(own, front, weight).view(queries.shape)


def attention_weights(queries: Tensor, keys: Tensor, mask: Tensor | None) -> Tensor:
    """Weights of attention `[R, heads, N, length]`; arguments as of `merged_attention`."""
    keys = keys.repeat_interleave(queries.shape[1] // keys.shape[1], 1)
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    return (scores if mask is None else scores + mask).softmax(-1)
