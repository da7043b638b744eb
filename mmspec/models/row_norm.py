"""Norms of rows by their root mean square, in few operators on a processor."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_WIDE = (torch.float32, torch.float64)  # others would round a row's length


class RowNorm:
    """`x / sqrt(mean(x²) + eps)` along the last axis, for inference.

    On a processor torch's own runs five operators, each of which costs more than its arithmetic
    does for a few rows; a row's length and its root are three.

    Args:
        eps: added to the mean.
    """

    def __init__(self, eps: float) -> None:
        self.eps = eps
        self._least = torch.tensor(eps, dtype=torch.float64)

    def __call__(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """`x [..., D]`, normed; times `weight`, which broadcasts to it, if there is one."""
        if x.device.type != "cpu" or x.dtype not in _WIDE:
            if weight is None or weight.ndim == 1:  # in one kernel
                return F.rms_norm(x, x.shape[-1:], weight, self.eps)
            return F.rms_norm(x, x.shape[-1:], eps=self.eps) * weight
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        mean = torch.addcmul(self._least, length, length, value=1 / x.shape[-1])
        normed = x * mean.rsqrt_()
        return normed if weight is None else normed * weight
