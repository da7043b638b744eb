"""Masks of a call for several tokens a row: chains, and trees in neighbouring slots."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.draft import Draft


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to attention scores: 0 where `allowed`, minus infinity elsewhere."""
    return torch.zeros_like(allowed, dtype=dtype).masked_fill_(~allowed, -torch.inf)


def causal_mask(keys: Tensor, first: int, dtype: torch.dtype) -> Tensor:
    """Mask `[n, length]` of a call at slots `first` and behind: each reads those up to its own."""
    return additive(keys <= keys[first:, None], dtype)


def prefix_mask(causal: Tensor, pads: Tensor, groups: Tensor) -> Tensor:
    """Keys that a prefix's last n columns may read `[R, 1, n, length]`, see `Setting.both_ways`.

    Args:
        causal: those that stand in front of them `[n, length]`, themselves included.
        pads: columns of padding in front `[R]`; each reads itself, so that its softmax is defined.
        groups: of all columns `[R, length]`.
    """
    count, length = causal.shape
    keys = torch.arange(length, device=causal.device)
    own = keys == keys[length - count :, None]
    same = groups[:, length - count :, None] == groups[:, None]
    allowed = causal | (same & (groups[:, None] >= 0))
    return ((allowed & (keys >= pads[:, None, None])) | own)[:, None]


def tree_mask(draft: Draft, first: Tensor, keys: Tensor) -> Tensor:
    """Mask of the keys that the root and each node may read, `[B, N + 1, length]`."""
    nodes = draft.nodes
    family = F.pad(draft.ancestors(), (0, 0, 1, 0))  # the root: no node
    node = keys - first - 1  # [B, length]: which node's slot a key is; below 0: the past
    index = node.clamp(0, nodes - 1)[:, None].expand(-1, nodes + 1, -1)
    past, known = (node < 0)[:, None], (node < nodes)[:, None]
    return past | (family.gather(2, index) & known)
