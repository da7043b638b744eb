"""Wan's layers: attention, a block modulated by the timesteps of its frames, and the head.

Wan team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models"; a timestep for every
frame as in CausVid and Self-Forcing.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..llamagen.transformer import rotate

BASE = 10000.0  # of the rotary speeds


class WanAttention(nn.Module):
    """Projections of multi-head attention; `qk_norm` norms queries and keys over the width D."""

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
        """Project the heads' results `[B, heads, S, head_dim]` to outputs `[B, S, D]`."""
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


class WanBlock(nn.Module):
    """Self-attention, cross-attention to the text and an MLP; the timestep modulates each frame."""

    def __init__(
        self, dim: int, ffn_dim: int, heads: int, qk_norm: bool, cross_norm: bool, eps: float
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.self_attn = WanAttention(dim, heads, qk_norm, eps)
        self.norm3 = nn.LayerNorm(dim, eps) if cross_norm else nn.Identity()
        self.cross_attn = WanAttention(dim, heads, qk_norm, eps)
        self.norm2 = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.ffn = mlp(dim, ffn_dim, dim)
        self.modulation = nn.Parameter(torch.randn(1, 6, dim) / dim**0.5)

    def forward(
        self,
        x: Tensor,
        modulation: Tensor,
        rotary: Tensor,
        text: Tensor,
        read: Callable[[Tensor, Tensor, Tensor], Tensor],
        first: int = 0,
    ) -> Tensor:
        """`[B, F, S, D]` to the same; frames before `first` are only read, and left out of it.

        Args:
            modulation: shift, scale and gate of self-attention and MLP, by frame `[B, F, 6, D]`.
            rotary: factors of the places `[F · S, head_dim / 2]`.
            text: keys and values `[2, B, heads, T, head_dim]`.
            read: the self-attention, of queries, keys and values `[B, heads, …, head_dim]`.
        """
        shift, scale, *others = (
            (self.modulation + modulation).unsqueeze(3).unbind(2)
        )  # [B, F, 1, D]
        h, skipped = (self.norm1(x) * (1 + scale) + shift).flatten(1, 2), first * x.shape[2]
        keys, values = self.self_attn.keys_values(h, rotary)
        queries = self.self_attn.queries(h[:, skipped:], rotary[skipped:])
        x, (gate, shift, scale, gate_ffn) = x[:, first:], (part[:, first:] for part in others)
        x = x + gate * self.self_attn.joined(read(queries, keys, values)).view_as(x)
        queries = self.cross_attn.queries(self.norm3(x).flatten(1, 2))
        found = F.scaled_dot_product_attention(queries, text[0], text[1])
        x = x + self.cross_attn.joined(found).view_as(x)
        return x + gate_ffn * self.ffn(self.norm2(x) * (1 + scale) + shift)


class WanHead(nn.Module):
    """Output layer, from the last block to patches of the prediction."""

    def __init__(self, dim: int, out: int, eps: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps, elementwise_affine=False)
        self.head = nn.Linear(dim, out)
        self.modulation = nn.Parameter(torch.randn(1, 2, dim) / dim**0.5)

    def forward(self, x: Tensor, told: Tensor) -> Tensor:
        """`[B, F, S, out]` of `x [B, F, S, D]`, given the timesteps' embedding `[B, F, D]`."""
        shift, scale = (self.modulation + told.unsqueeze(2)).unsqueeze(3).unbind(2)
        return self.head(self.norm(x) * (1 + scale) + shift)


def mlp(inward: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inward, hidden), nn.GELU(approximate="tanh"), nn.Linear(hidden, out)
    )


def sinusoids(timesteps: Tensor, count: int) -> Tensor:
    """`[..., count]` of timesteps `[...]`: cosines, then sines, in double precision."""
    half = torch.arange(count // 2, dtype=torch.float64, device=timesteps.device)
    angles = timesteps[..., None].double() * 10000.0 ** -(half / (count // 2))
    return torch.cat([angles.cos(), angles.sin()], dim=-1)
