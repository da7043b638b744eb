"""Decoder layers of published heads; tensor names are those of the files."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .attention import Attend, HeadAttention
from .experts import ExpertSizes, HeadMlp, MixtureOfExperts
from .latent import LatentAttention
from .sizes import HeadSizes


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
        kind = HeadAttention if sizes.latent is None else LatentAttention
        self.self_attn = kind(sizes, width)
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
