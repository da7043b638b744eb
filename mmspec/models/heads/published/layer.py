"""Decoder layers of published heads: Llama's or Qwen3's, with the differences that heads have.

Tensor names are those of the files. Attention is left to the caller: at inference it reads a cache,
in training it reads a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import InputError
from .experts import ExpertSizes, HeadMlp, MixtureOfExperts

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""Attention of a layer: its number, queries, keys and values `[R, heads, N, head_dim]`, to
`[R, heads, N, head_dim]`."""


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a head's layers, as `config.json` names them.

    Attributes:
        qkv_bias: the projections to queries, keys and values have biases (Qwen2).
        qk_norm: queries and keys are normed head by head (Qwen3).
        gated: every head's queries come with a gate of its output (Qwen3-Next).
        zero_centred: norms multiply by one more than their weights (Qwen3-Next).
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float = 1e-6
    qkv_bias: bool = False
    qk_norm: bool = False
    gated: bool = False
    zero_centred: bool = False

    def norm(self, width: int) -> nn.Module:
        """Norm of `width` numbers."""
        kind = ZeroCentredNorm if self.zero_centred else nn.RMSNorm
        return kind(width, self.rms_norm_eps)

    @classmethod
    def of(cls, config: Mapping[str, Any], **own: Any) -> HeadSizes:
        """Sizes of a configuration with Llama's keys; `own` go before them.

        Raises:
            InputError: a size is missing, or is no whole number above zero.
        """

        def size(name: str, default: Any = None) -> int:
            value = own.pop(name, None) or config.get(name) or default
            if not isinstance(value, int) or value < 1:
                raise InputError(f"config.json has no {name}, or one that is no size: {value!r}")
            return value

        if config.get("hidden_act") not in (None, "silu", "swish"):
            raise InputError(f"layers with {config['hidden_act']!r} are not supported, SiLU alone")
        hidden, heads = size("hidden_size"), size("num_attention_heads")
        return cls(
            hidden,
            size("intermediate_size"),
            heads,
            size("num_key_value_heads", heads),
            size("head_dim", hidden // heads),
            float(config.get("rms_norm_eps", cls.rms_norm_eps)),
            **own,
        )


class ZeroCentredNorm(nn.Module):
    """`x / rms(x) · (1 + w)`, at least in float32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        real = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = F.rms_norm(real, real.shape[-1:], eps=self.eps)
        return (normed * (1 + self.weight.to(real.dtype))).to(x.dtype)


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


class HeadLayer(nn.Module):
    """A decoder layer.

    Args:
        sizes: see `HeadSizes`.
        first_norm: the inputs are normed; EAGLE-1's first layer takes them as they are.
        experts: of a mixture; None: the feed-forward part is plain.
    """

    def __init__(
        self, sizes: HeadSizes, first_norm: bool = True, experts: ExpertSizes | None = None
    ) -> None:
        super().__init__()
        width = sizes.hidden_size
        self.self_attn = HeadAttention(sizes, width)
        self.mlp = (
            HeadMlp(width, sizes.intermediate_size)
            if experts is None
            else MixtureOfExperts(experts, width)
        )
        if first_norm:
            self.input_layernorm = sizes.norm(width)
        self.post_attention_layernorm = sizes.norm(width)
        self.first_norm = first_norm

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, layer: int, skip: int = 0
    ) -> Tensor:
        """Hidden states `[R, N − skip, H]` of inputs `[R, N, H]`.

        Args:
            skip: the first inputs, which others read and nobody asks for.
        """
        normed = self.input_layernorm(x) if self.first_norm else x
        h = x[:, skip:] + self.self_attn(normed, turns, attend, layer, skip)
        out: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return out


class FusedLayer(nn.Module):
    """EAGLE-3's layer: attention reads the token's embedding and the hidden state side by side.

    Args:
        sizes: see `HeadSizes`.
        norm_before_residual: the residual is the normed hidden state.
    """

    def __init__(self, sizes: HeadSizes, norm_before_residual: bool = False) -> None:
        super().__init__()
        width, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.self_attn = HeadAttention(sizes, 2 * width)
        self.mlp = HeadMlp(width, sizes.intermediate_size)
        self.input_layernorm = nn.RMSNorm(width, eps)
        self.hidden_norm = nn.RMSNorm(width, eps)
        self.post_attention_layernorm = nn.RMSNorm(width, eps)
        self.norm_before_residual = norm_before_residual

    def forward(
        self,
        embedded: Tensor,
        hidden: Tensor,
        turns: tuple[Tensor, Tensor],
        attend: Attend,
        layer: int,
        skip: int = 0,
    ) -> Tensor:
        """Hidden states `[R, N − skip, H]` of embeddings and hidden states `[R, N, H]`."""
        normed = self.hidden_norm(hidden)
        x = torch.cat([self.input_layernorm(embedded), normed], dim=-1)
        residual = normed if self.norm_before_residual else hidden
        h = residual[:, skip:] + self.self_attn(x, turns, attend, layer, skip)
        out: Tensor = h + self.mlp(self.post_attention_layernorm(h))
        return out


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
