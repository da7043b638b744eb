"""LongSpec (Yang et al. 2025): one layer of constant memory beside the target's own cache.

`h = x + self(norm(x))` over a window of tokens, `h' = h + cross(norm(h))` with queries alone, whose
keys and values are those that the target's last layer has stored, then an MLP. x is the target's
embedding. The target's output layer reads the result: as it is in released code; of heads that are
trained here behind a norm, without which it takes long until laws are sharp.

The layer's own keys and values depend on a token and its position, on nothing else; so what has
been drafted leaves no trace that a rejection would have to undo.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn

from .attention import HeadAttention
from .experts import HeadMlp
from .sizes import HeadSizes

WINDOW = 512  # tokens in front of its own that a token attends to, in released code

Within = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Self-attention: queries, keys and values `[R, heads, N, head_dim]`, to `[R, heads, N, head_dim]`.
"""
Across = Callable[[Tensor], Tensor]
"""Cross-attention of queries `[R, heads, N, head_dim]`; zeros where there is nothing to read."""


class CrossAttention(HeadAttention):
    """Attention that makes queries alone."""

    def __init__(self, sizes: HeadSizes, width: int) -> None:
        super().__init__(replace(sizes, qk_norm=False), width)
        del self.k_proj, self.v_proj

    def across(self, x: Tensor, turns: tuple[Tensor, Tensor], across: Across) -> Tensor:
        """Outputs `[R, N, H]` of inputs `[R, N, H]`."""
        out: Tensor = self.o_proj(across(self.queries(x, turns)[0]).transpose(1, 2).flatten(2))
        return out


class LongSpecNetwork(nn.Module):
    """The network; see the module.

    Args:
        sizes: of its attention and MLP; its heads are as wide as the target's.
        window: see `WINDOW`.
        block: tokens ahead that it learns to draft from a cache that does not know them.
        normed: there is a norm in front of the output layer.
    """

    def __init__(
        self, sizes: HeadSizes, window: int = WINDOW, block: int = 4, normed: bool = False
    ) -> None:
        super().__init__()
        if window < 1 or block < 1:
            raise ValueError(f"window and block are 1 or more, not {window} and {block}")
        width, self.sizes = sizes.hidden_size, sizes
        self.window, self.block = window, block
        self.self_attn = HeadAttention(sizes, width)
        self.cross_attn = CrossAttention(sizes, width)
        self.mlp = HeadMlp(width, sizes.intermediate_size)
        self.input_layernorm = sizes.norm(width)
        self.post_self_attention_layernorm = sizes.norm(width)
        self.post_cross_attention_layernorm = sizes.norm(width)
        self.norm = sizes.norm(width) if normed else nn.Identity()

    def entries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Own keys and values `[2, R, kv_heads, N, head_dim]` of embeddings `[R, N, H]`."""
        return torch.stack(self.self_attn.keys_values(self.input_layernorm(x), turns))

    def forward(
        self,
        x: Tensor,
        turns: tuple[Tensor, Tensor],
        within: Within,
        across: Across,
        skip: int = 0,
    ) -> Tensor:
        """Inputs of the output layer `[R, N − skip, H]`, of embeddings `[R, N, H]`.

        Args:
            turns: cosines and sines `[R, N, head_dim]` of the target's own positions.
            within, across: what attention reads.
            skip: the first inputs, which others read and nobody asks for.
        """
        cos, sin = turns
        own = cos[:, skip:], sin[:, skip:]
        normed = self.input_layernorm(x)
        q, _ = self.self_attn.queries(normed[:, skip:], own)
        out = within(q, *self.self_attn.keys_values(normed, turns)).transpose(1, 2)
        h = x[:, skip:] + self.self_attn.o_proj(out.flatten(2))
        h = h + self.cross_attn.across(self.post_self_attention_layernorm(h), own, across)
        result: Tensor = self.norm(h + self.mlp(self.post_cross_attention_layernorm(h)))
        return result


def attended(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor) -> Tensor:
    """Attention `[R, heads, N, dim]` of queries to what `mask [R, 1, N or 1, T]` lets them read.

    Queries that may read nothing get zeros.
    """
    if not keys.shape[2]:
        return torch.zeros_like(q)
    reads = mask.any(-1, keepdim=True)
    grouped = q.shape[1] != keys.shape[1]
    out = nn.functional.scaled_dot_product_attention(
        q, keys, values, mask | ~reads, enable_gqa=grouped
    )
    return out.masked_fill(~reads, 0.0)
