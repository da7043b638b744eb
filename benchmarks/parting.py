"""Attention of a batch of prompts of different lengths: over its padding, or in parts without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mmspec.models.call_masks import additive
from mmspec.models.merged_attention import merged_attention
from mmspec.models.parted_attention import parted_attention, parts_of

from .merging import compared

HEADS, SHARED, WIDTH = 9, 3, 64
PROMPTS = (42, 170, 33, 31, 560, 76, 1568, 25)


def parting(pipe: Any = None, samples: int = 10) -> dict[str, Any]:
    """Milliseconds of one layer's attention by new tokens a row; paired.

    `whole_over_parts` is above 1 where parts are quicker. Keys and values are random, of 3 heads
    that 9 share, of width 64; eight rows of 25 to 1,568 tokens are padded to the longest.
    """
    return {f"{new} tokens a row": compared(*_ways(new), "parts", samples) for new in (1, 8)}


def _ways(new: int) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
    rows, length = len(PROMPTS), max(PROMPTS) + new
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(rows, HEADS, new, WIDTH, generator=generator)
    k, v = torch.randn(2, rows, SHARED, length, WIDTH, generator=generator)
    keys, begins = torch.arange(length), max(PROMPTS) - torch.tensor(PROMPTS)
    allowed = (keys <= keys[-new:, None]) & (keys >= begins[:, None, None])
    mask = additive(allowed, q.dtype)[:, None]

    @torch.inference_mode()
    def whole() -> Tensor:
        return merged_attention(q, k, v, mask)

    @torch.inference_mode()
    def parts() -> Tensor:
        return parted_attention(q, k, v, mask, parts_of(mask))

    return whole, parts
