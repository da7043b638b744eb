"""Attention of published heads: Llama's or Qwen3's, with the differences that heads have.

Tensor names are those of the files. What is attended to is left to the caller: at inference it
reads a cache, in training it reads a mask.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .sizes import HeadSizes

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer: its number, queries, keys and values `[R, heads, N, head_dim]`, to
`[R, heads, N, head_dim]`."""


class HeadAttention(nn.Module):
    """Grouped-query attention with rotary positions (halves, as in transformers).

    Args:
        sizes: see `HeadSizes`.
        width: of the inputs; EAGLE-3 joins two vectors.
    """

    def __init__(self, sizes: HeadSizes, width: int) -> None:
        super().__init__()
        self.sizes = sizes
        heads, kv, dim = sizes.num_attention_heads, sizes.num_key_value_heads, sizes.head_dim
        self.q_proj = nn.Linear(width, heads * dim * (2 if sizes.gated else 1), bias=sizes.qkv_bias)
        self.k_proj = nn.Linear(width, kv * dim, bias=sizes.qkv_bias)
        self.v_proj = nn.Linear(width, kv * dim, bias=sizes.qkv_bias)
        self.o_proj = nn.Linear(heads * dim, sizes.hidden_size, bias=False)
        if sizes.qk_norm:
            self.q_norm, self.k_norm = sizes.norm(dim), sizes.norm(dim)

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Queries `[R, heads, N, head_dim]` of inputs `[R, N, width]`; `turns` see `rotate`.

        Beside them the gates `[R, N, heads, head_dim]` of the outputs; None: there are none.
        """
        heads, gate = self.sizes.num_attention_heads, None
        q = self.q_proj(x).unflatten(-1, (heads, -1))
        if self.sizes.gated:
            q, gate = q.chunk(2, dim=-1)
        q = rotate(self.q_norm(q) if self.sizes.qk_norm else q, turns)
        return q.transpose(1, 2), gate

    def keys_values(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, kv_heads, N, head_dim]` of inputs `[R, N, width]`."""
        k = self.k_proj(x).unflatten(-1, (-1, self.sizes.head_dim))
        v = self.v_proj(x).unflatten(-1, (-1, self.sizes.head_dim))
        k = rotate(self.k_norm(k) if self.sizes.qk_norm else k, turns)
        return k.transpose(1, 2), v.transpose(1, 2)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, layer: int, skip: int = 0
    ) -> Tensor:
        cos, sin = turns
        q, gate = self.queries(x[:, skip:], (cos[:, skip:], sin[:, skip:]))
        out = attend(layer, q, *self.keys_values(x, turns)).transpose(1, 2)
        if gate is not None:
            out = out * torch.sigmoid(gate)
        joined: Tensor = self.o_proj(out.flatten(2))
        return joined


def rotate(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """`x [R, N, heads, head_dim]` turned by cosines and sines `[R, N, turned]`.

    Numbers of a head behind the first `turned` stay. The first half of those is paired with the
    second half, as in transformers.
    """
    cos, sin = (t[:, :, None].to(x.dtype) for t in turns)
    x, rest = x.split([cos.shape[-1], x.shape[-1] - cos.shape[-1]], dim=-1)
    first, second = x.chunk(2, dim=-1)
    out = x * cos + torch.cat([-second, first], dim=-1) * sin
    return torch.cat([out, rest], dim=-1) if rest.shape[-1] else out


def masked_attention(mask: Tensor) -> Attend:
    """Attention over the inputs themselves; `mask [R or 1, 1, N, N]` is added to the scores."""

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=q.shape[1] != k.shape[1])

    return attend
