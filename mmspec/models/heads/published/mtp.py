"""Multi-token prediction: a target's own layer for the token after the next.

`fc([norm(e(x_{t+1})); norm(h_t)])` goes into one decoder layer; its output, normed, is read by the
target's output layer (DeepSeek-AI 2024, section 2.2; Qwen3-Next).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .layer import Attend, HeadLayer, HeadSizes


class MtpNetwork(nn.Module):
    """The network, under Qwen3-Next's names without their prefix `mtp.`."""

    def __init__(self, sizes: HeadSizes, layers: int = 1) -> None:
        super().__init__()
        width, eps = sizes.hidden_size, sizes.rms_norm_eps
        self.pre_fc_norm_embedding = nn.RMSNorm(width, eps)
        self.pre_fc_norm_hidden = nn.RMSNorm(width, eps)
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.layers = nn.ModuleList(HeadLayer(sizes) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps)

    def joined(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """Inputs `[R, N, H]` of embeddings and the hidden states in front of them."""
        normed = self.pre_fc_norm_embedding(embedded), self.pre_fc_norm_hidden(hidden)
        x: Tensor = self.fc(torch.cat(normed, dim=-1))
        return x

    def forward(self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Hidden states `[R, N, H]` behind the final norm."""
        for number, layer in enumerate(self.layers):
            x = layer(x, turns, attend, number)
        out: Tensor = self.norm(x)
        return out
