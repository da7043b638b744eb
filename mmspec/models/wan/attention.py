"""Wan's attention: projections, and rotary positions in time and space.

Wan team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models".
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor, nn

from ..llamagen.transformer import rotate

BASE = 10000.0  # of the rotary speeds


class WanAttention(nn.Module):
    """Projections of multi-head attention; queries and keys are normed over the whole width D.

    Args:
        dim: width D.
        heads: so many heads.
        qk_norm: whether queries and keys are normed.
        eps: of the norms.
    """

    def __init__(self, dim: int, heads: int, qk_norm: bool, eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.o = nn.Linear(dim, dim)
        self.norm_q = nn.RMSNorm(dim, eps) if qk_norm else nn.Identity()
        self.norm_k = nn.RMSNorm(dim, eps) if qk_norm else nn.Identity()

    def queries(self, x: Tensor, rotary: Tensor | None = None) -> Tensor:
        """Queries `[B, heads, S, head_dim]` of `x [B, S, D]`, turned by `rotary` if given."""
        return self._split(self.norm_q(self.q(x)), rotary)

    def keys_values(self, x: Tensor, rotary: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values, as `queries`; only keys are turned."""
        return self._split(self.norm_k(self.k(x)), rotary), self._split(self.v(x), None)

    def joined(self, found: Tensor) -> Tensor:
        """What the heads found, `[B, heads, S, head_dim]`, as the layer's output `[B, S, D]`."""
        return self.o(found.transpose(1, 2).flatten(2))

    def _split(self, x: Tensor, rotary: Tensor | None) -> Tensor:
        heads = x.unflatten(-1, (self.heads, -1))
        return (heads if rotary is None else rotate(heads, rotary)).transpose(1, 2)


@lru_cache(maxsize=8)
def rotary_3d(
    frames: tuple[int, ...],
    height: int,
    width: int,
    head_dim: int,
    double: bool,
    device: torch.device,
) -> Tensor:
    """Complex factors `[F · height · width, head_dim / 2]` of places in raster order.

    Of the pairs of a head, `head_dim // 6` turn with the row, as many with the column, and the rest
    with time.

    Args:
        frames: where the F frames stand in the clip, counted from its first.
        height, width: of a frame, in tokens.
        double: in double precision.
    """
    space = 2 * (head_dim // 6)
    with torch.inference_mode(False):  # a later call may train on them
        axes = torch.tensor(frames), torch.arange(height), torch.arange(width)
        positions = torch.cartesian_prod(*axes).double()  # [n, 3]
        turns = []
        for axis, dim in enumerate((head_dim - 2 * space, space, space)):
            speeds = BASE ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
            turns.append(positions[:, axis, None] * speeds)
        angles = torch.cat(turns, dim=1)
        factors = torch.polar(torch.ones_like(angles), angles)
        return factors.to(device, torch.complex128 if double else torch.complex64)


def later(keys: Tensor, frames: int) -> Tensor:
    """Turned keys `[B, heads, n, head_dim]` as if they stood so many frames later in the clip."""
    turn = _turn(frames, keys.shape[-1], keys.dtype == torch.float64, keys.device)
    return rotate(keys.transpose(1, 2), turn.expand(keys.shape[2], -1)).transpose(1, 2)


@lru_cache(maxsize=64)  # a call may ask for as many as it has blocks, layer after layer
def _turn(frames: int, head_dim: int, double: bool, device: torch.device) -> Tensor:
    """Factors `[1, head_dim / 2]` of so many frames."""
    return rotary_3d.__wrapped__((frames,), 1, 1, head_dim, double, device)
