"""Multi-head latent attention of prediction layers (MLA, DeepSeek-AI 2024, section 2.1.1).

Keys and values of all heads come from one short vector a token. A part of every key, the same in
all heads, is turned by the position; the rest is not.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .attention import Attend, rotate
from .sizes import HeadSizes

_EPS = 1e-6  # of the norms of short vectors, whatever that of the other norms is


class LatentAttention(nn.Module):
    """The attention, under the names of DeepSeek-V3's files.

    The caller keeps whole keys and values, as of other attention. Values are filled up with zeros
    to the length of keys, for both lie in one cache.

    Args:
        sizes: with `latent`; see `HeadSizes`.
        width: of the inputs.
    """

    def __init__(self, sizes: HeadSizes, width: int) -> None:
        super().__init__()
        assert sizes.latent is not None
        self.sizes, self.own = sizes, sizes.latent
        own, heads, bias = self.own, sizes.num_attention_heads, sizes.qkv_bias
        if own.query_rank:
            self.q_a_proj = nn.Linear(width, own.query_rank, bias=bias)
            self.q_a_layernorm = nn.RMSNorm(own.query_rank, _EPS)
            self.q_b_proj = nn.Linear(own.query_rank, heads * sizes.head_dim, bias=False)
        else:
            self.q_proj = nn.Linear(width, heads * sizes.head_dim, bias=False)
        self.kv_a_proj_with_mqa = nn.Linear(width, own.rank + own.turned, bias=bias)
        self.kv_a_layernorm = nn.RMSNorm(own.rank, _EPS)
        self.kv_b_proj = nn.Linear(own.rank, heads * (own.plain + own.values), bias=False)
        self.o_proj = nn.Linear(heads * own.values, sizes.hidden_size, bias=False)

    def queries(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Queries `[R, heads, N, head_dim]` of inputs `[R, N, width]`."""
        own = self.own
        if own.query_rank:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(x)))
        else:
            q = self.q_proj(x)
        plain, turned = q.unflatten(-1, (-1, self.sizes.head_dim)).split(
            [own.plain, own.turned], dim=-1
        )
        q = torch.cat([plain, self._rotated(turned, turns)], dim=-1) * own.scale
        return q.transpose(1, 2)

    def keys_values(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, heads, N, head_dim]` of inputs `[R, N, width]`."""
        own, heads = self.own, self.sizes.num_attention_heads
        latent, turned = self.kv_a_proj_with_mqa(x).split([own.rank, own.turned], dim=-1)
        both = self.kv_b_proj(self.kv_a_layernorm(latent)).unflatten(-1, (heads, -1))
        plain, values = both.split([own.plain, own.values], dim=-1)
        shared = self._rotated(turned[..., None, :], turns).expand(-1, -1, heads, -1)
        keys = torch.cat([plain, shared], dim=-1)
        values = F.pad(values, (0, self.sizes.head_dim - own.values))
        return keys.transpose(1, 2), values.transpose(1, 2)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, layer: int, skip: int = 0
    ) -> Tensor:
        """Outputs `[R, N − skip, H]`, arguments as of `HeadLayer.forward`."""
        cos, sin = turns
        q = self.queries(x[:, skip:], (cos[:, skip:], sin[:, skip:]))
        out = attend(layer, q, *self.keys_values(x, turns)).transpose(1, 2)
        joined: Tensor = self.o_proj(out[..., : self.own.values].flatten(2))
        return joined

    def _rotated(self, x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        if self.own.paired:  # neighbours turn together; the order of what comes out is no matter
            x = torch.cat([x[..., 0::2], x[..., 1::2]], dim=-1)
        return rotate(x, turns)
