"""EAGLE-3 and 3.1 (Li et al. 2025), under the names of vLLM and speculators (`layers.0`).

Hidden states of some of the target's layers are joined by `fc` into one vector. The layer reads it
beside the token's embedding. Its output goes into the next step in place of the target's: before
the final norm, or, with `feed_normed`, behind it. A head has its own output layer, often over some
of the target's tokens alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..columns import Columns, Look
from .attention import Attend
from .layer import FusedLayer, HeadLayer
from .sizes import HeadSizes


class Eagle3Network(nn.Module):
    """The network; see the module.

    Args:
        sizes: see `HeadSizes`.
        fused: hidden states of the target that are joined, A.
        target_size: their width Ht.
        vocab_size: V of its embeddings; None: it stores none and takes the target's.
        draft_vocab_size: Vd of its output layer; None: it has none and takes the target's.
        layers: decoder layers; those behind the first are plain.
        bias: `fc` has a bias.
        norm_before_residual: see `FusedLayer`.
        fc_norm: every fused state is normed by itself (EAGLE-3.1).
        input_norm: the fused states are normed together.
        feed_normed: the next step takes the output behind the final norm (EAGLE-3.1).
        mask_token_id: P-EAGLE's, of places that have no token yet; their hidden states are
            `mask_hidden`. None: the head drafts token by token.
        block: tokens that P-EAGLE says a call.

    Attributes:
        norm_logits: the output layer reads the output behind the final norm. No file says
            otherwise; heads of a SpecForge before September 2026 may have learned the other.
    """

    norm_logits = True

    def __init__(
        self,
        sizes: HeadSizes,
        fused: int,
        target_size: int,
        vocab_size: int | None,
        draft_vocab_size: int | None,
        layers: int = 1,
        bias: bool = False,
        norm_before_residual: bool = False,
        fc_norm: bool = False,
        input_norm: bool = False,
        feed_normed: bool = False,
        mask_token_id: int | None = None,
        block: int = 1,
    ) -> None:
        super().__init__()
        self.width = width = sizes.hidden_size
        eps = sizes.rms_norm_eps
        self.fused, self.feed_normed = fused, feed_normed
        if vocab_size is not None:
            self.embed_tokens = nn.Embedding(vocab_size, width)
        if fc_norm:
            self.fc_norm = nn.ModuleList(nn.RMSNorm(target_size, eps) for _ in range(fused))
        if input_norm:
            self.input_norm = nn.RMSNorm(fused * target_size, eps)
        self.mask_token_id, self.block = mask_token_id, block
        if mask_token_id is not None:
            self.mask_hidden = nn.Parameter(torch.empty(1, 1, fused * target_size))
        self.fc = nn.Linear(fused * target_size, width, bias=bias)
        first = FusedLayer(sizes, norm_before_residual)
        self.layers = nn.ModuleList([first, *(HeadLayer(sizes) for _ in range(layers - 1))])
        self.norm = nn.RMSNorm(width, eps)
        if draft_vocab_size is not None:
            self.lm_head = nn.Linear(width, draft_vocab_size, bias=False)

    def fuse(self, states: Tensor) -> Tensor:
        """Vector `[…, H]` of the target's hidden states `[…, A · Ht]`."""
        if hasattr(self, "fc_norm"):
            parts = states.chunk(self.fused, dim=-1)
            norms = zip(self.fc_norm, parts, strict=True)
            states = torch.cat([norm(part) for norm, part in norms], dim=-1)
        if hasattr(self, "input_norm"):
            states = self.input_norm(states)
        out: Tensor = self.fc(states)
        return out

    def look(self, columns: Columns) -> Look:
        """Compress the pictures: here they stay."""
        return Look()

    def joined(self, embedded: Tensor, hidden: Tensor, context: Tensor | None = None) -> Tensor:
        """Inputs `[R, N, 2 H]` of embeddings and the hidden states in front of them."""
        return torch.cat([embedded, hidden], dim=-1)

    def forward(
        self, x: Tensor, turns: tuple[Tensor, Tensor], attend: Attend, skip: int = 0
    ) -> Tensor:
        """Hidden states of the next step's inputs `[R, N − skip, H]`, of inputs `[R, N, 2 H]`.

        Args:
            skip: the first inputs, which others read and nobody asks for.
        """
        embedded, hidden = x.split([x.shape[-1] - self.width, self.width], dim=-1)
        first, *others = self.layers
        h = first(embedded, hidden, turns, attend, 0, 0 if others else skip)
        for number, layer in enumerate(others, start=1):
            h = layer(h, turns, attend, number, skip if number == len(others) else 0)
        out: Tensor = self.norm(h) if self.feed_normed else h
        return out

    def before_output(self, hidden: Tensor) -> Tensor:
        """Inputs of the output layer, of the states that `forward` gave."""
        if self.feed_normed or not self.norm_logits:
            return hidden
        out: Tensor = self.norm(hidden)
        return out
