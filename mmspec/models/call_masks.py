"""Masks of a call for several tokens a row: chains, and trees in neighbouring slots."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.draft import Draft


def additive(allowed: Tensor, dtype: torch.dtype) -> Tensor:
    """A mask to add to attention scores: 0 where `allowed`, minus infinity elsewhere."""
    return allowed.to(dtype).log_()  # exactly: log 1 = 0, log 0 = minus infinity


class CausalMasks:
    """Masks of calls at slots in a row: each token reads those up to its own.

    They are parts of one that is made once, as wide as the widest call so far; calls for more than
    `most` tokens, which are few, have masks of their own.

    Args:
        slots: of the cache.
        dtype, device: of the masks.
        most: tokens of a call.
    """

    def __init__(
        self, slots: int, dtype: torch.dtype, device: torch.device, most: int = 128
    ) -> None:
        self.slots, self.dtype, self.device, self.most = slots, dtype, device, most
        self._whole = torch.zeros(0, 0)

    def of(self, first: int, count: int) -> Tensor:
        """Mask `[count, first + count]` of a call for `count` tokens from slot `first` on."""
        if count > self.most:
            return self._made(first, count)
        if count > len(self._whole):
            self._whole = self._made(self.slots, count)
        mask = self._whole[:count, self.slots - first : self.slots + count]
        # kernels of other devices want rows to begin at round addresses
        return mask if mask.device.type == "cpu" else mask.contiguous()

    def _made(self, first: int, count: int) -> Tensor:
        keys = torch.arange(first + count, device=self.device)
        return additive(keys <= keys[first:, None], self.dtype)


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


def family_mask(draft: Draft) -> Tensor:
    """Mask `[B, N + 1, N + 1]` of what the root and each node reads of one another."""
    # the root reads itself alone, and all read it
    return F.pad(F.pad(draft.ancestors(), (0, 0, 1, 0)), (1, 0), value=True)


def tree_mask(draft: Draft, first: Tensor, keys: Tensor) -> Tensor:
    """Mask of the keys that the root and each node may read, `[B, N + 1, length]`.

    Args:
        first: slots of the roots `[B, 1]`, with the nodes behind.
        keys: all slots `[length]`.
    """
    count = draft.nodes + 1
    past = (keys < first)[:, None].repeat(1, count, 1)
    # rows that run no more may lie behind all keys
    slots = (first + torch.arange(count, device=keys.device)).clamp_max(len(keys) - 1)
    return past.scatter_(2, slots[:, None].expand(-1, count, -1), family_mask(draft))


def tree_of_one(draft: Draft, root: int, count: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Columns `[count]` and mask `[count, root + N + 1]` of the last of a single row's nodes.

    Without padding it needs no more than a chain does.

    Args:
        root: its slot; all in front of it are read.
        count: of the nodes, the root among them.
    """
    family = family_mask(draft)[0, draft.nodes + 1 - count :]
    return family.sum(-1) + (root - 1), F.pad(additive(family, dtype), (root, 0))
