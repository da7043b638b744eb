"""Wan's layers: a transformer block modulated by the timesteps of its frames, and the head.

Wan team 2025, "Wan: Open and Advanced Large-Scale Video Generative Models"; a timestep for every
frame as in CausVid and Self-Forcing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import WanAttention


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
    """From the last block to patches of the prediction."""

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
