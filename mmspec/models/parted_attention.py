"""Attention of rows that begin and end at different slots, without the slots that are not theirs.

A batch of prompts is padded to the longest, and a row that took its place later ends earlier. The
mask hides what is not a row's own, but kernels read it all the same. On a processor neighbours that
lie alike are read together, each group no more than it needs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .merged_attention import merged_attention
from .row_groups import row_groups

Part = tuple[slice, slice]
"""Rows that are read together, and the entries that they need."""

_CALL = 256  # entries of a row that a processor reads while it begins with one more part


def parts_of(mask: Tensor | None) -> list[Part]:
    """Parts that a call reads; none where it is read as a whole.

    Args:
        mask: of the call, see `merged_attention`.
    """
    if mask is None or mask.ndim < 4 or mask.device.type != "cpu":
        return []
    rows, length = mask.shape[0], mask.shape[-1]
    if rows * length <= 4 * _CALL:
        return []
    read = (mask == 0).flatten(1, -2).any(1).byte()
    begins = read.argmax(1).tolist()
    ends = (length - read.flip(1).argmax(1)).tolist()
    groups = row_groups(begins, ends, _CALL)
    spans = [(min(begins[r] for r in g), max(ends[r] for r in g)) for g in groups]
    if spans == [(0, length)]:
        return []
    several = [slice(None)] if rows == 1 else [slice(g.start, g.stop) for g in groups]
    return [(which, slice(*span)) for which, span in zip(several, spans, strict=True)]


def parted_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, parts: list[Part]
) -> Tensor:
    """Attention `[R, heads, N, D]`, part by part; arguments as of `merged_attention`."""
    outs = []
    for rows, entries in parts:
        k, v = keys[rows, :, entries], values[rows, :, entries]
        outs.append(merged_attention(queries[rows], k, v, mask[rows, ..., entries]))
    return outs[0] if len(outs) == 1 else torch.cat(outs)
