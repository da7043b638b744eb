"""Sizes of the decoder layers of published heads, and the norms that they have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ....errors import InputError


@dataclass(frozen=True)
class LatentSizes:
    """Sizes of latent attention, see `LatentAttention`.

    Attributes:
        rank: numbers that keys and values come from (`kv_lora_rank`).
        plain, turned: numbers of a key that its position does not turn, and that it does.
        values: numbers of a value, at most those of a key.
        query_rank: numbers that queries come from; 0: the input itself.
        paired: neighbours turn together, not the halves.
        scale: of the scores, beside the usual one (YaRN's).
    """

    rank: int
    plain: int
    turned: int
    values: int
    query_rank: int = 0
    paired: bool = True
    scale: float = 1.0


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of a head's layers, as `config.json` names them.

    Attributes:
        qkv_bias: the projections to queries, keys and values have biases (Qwen2).
        qk_norm: queries and keys are normed head by head (Qwen3).
        gated: every head's queries come with a gate of its output (Qwen3-Next).
        zero_centred: norms multiply by one more than their weights (Qwen3-Next).
        latent: of latent attention (DeepSeek-V3); None: attention is plain.
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
    latent: LatentSizes | None = None

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
