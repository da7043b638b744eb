"""DFlash's head: a whole block of masked places in one call (Chen et al. 2026).

A few layers denoise `[x_t, MASK, …]` at once, every place in sight of the others. What they know of
the context are keys and values that each layer makes of the target's hidden states: the context
itself runs through no layer.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import register_to_config
from torch import Tensor, nn

from ..llamagen.transformer import LlamaGenBlock
from .base import DraftHead, HeadBatch
from .columns import Columns
from .hydra import block_loss


class DFlashHead(DraftHead):
    """Head that drafts a block a call, see `DraftHead`; it reads the target's last hidden states.

    Args:
        block: K, masked places behind the last committed token.
        num_layers: decoder layers.
    """

    @register_to_config
    def __init__(
        self, target: dict[str, Any], sizes: dict[str, Any], block: int = 7, num_layers: int = 2
    ) -> None:
        super().__init__(target, sizes)
        self.fc = nn.Linear(self.dim, self.dim, bias=False)
        self.context_norm = self.rms_norm()
        self.mask_token = nn.Parameter(torch.randn(self.dim) * 0.02)
        self.layers = nn.ModuleList(self.block() for _ in range(num_layers))
        self.norm = self.rms_norm()
        self.block_size = block

    def context(self, features: Tensor) -> Tensor:
        """The context that the layers read in place of hidden states `[…, D]`."""
        return self.context_norm(self.fc(features))

    def masked(self, embedded: Tensor) -> Tensor:
        """Inputs of blocks `[…, 1 + K, D]` that begin with tokens embedded as `[…, D]`."""
        masks = self.mask_token.expand(*embedded.shape[:-1], self.block_size, -1)
        return torch.cat([embedded.unsqueeze(-2), masks], dim=-2)

    def forward(self, columns: Columns, anchors: Tensor) -> Tensor:
        """Hidden states `[R, A, K, D]` of the K tokens behind the columns `anchors [R, A]`.

        A block reads the hidden states in front of its anchor, and itself.
        """
        embedded, place = columns.embedded, columns.positions()
        dtype, (rows, count), size = embedded.dtype, anchors.shape, 1 + self.block_size
        began = embedded.gather(1, anchors[..., None].expand(-1, -1, self.dim))
        h = self.masked(began).flatten(1, 2)  # [R, A (1 + K), D]
        steps = torch.arange(size, device=anchors.device)
        turns = self.rotary((place.gather(1, anchors)[..., None] + steps).flatten(1), dtype)
        # a column has the hidden state behind it in front of the next one
        context = self.context(columns.before[:, 1:])
        before = self.rotary(place[:, :-1], dtype)
        columns_of = torch.arange(context.shape[1], device=anchors.device)
        seen = (columns_of < anchors[..., None]) & columns.mask[:, None, :-1]
        block = torch.arange(count, device=anchors.device).repeat_interleave(size)
        own = (block[:, None] == block).expand(rows, -1, -1)
        mask = torch.cat([seen.repeat_interleave(size, 1), own], dim=2)[:, None]
        for layer in self.layers:
            assert isinstance(layer, LlamaGenBlock)
            attention = layer.attention
            query, key, value = attention.heads(layer.attention_norm(h), turns)
            _, old_key, old_value = attention.heads(layer.attention_norm(context), before)
            keys = torch.cat([old_key, key], dim=2)
            values = torch.cat([old_value, value], dim=2)
            grouped = attention.n_head != attention.n_kv_head
            found = F.scaled_dot_product_attention(query, keys, values, mask, enable_gqa=grouped)
            h = h + attention.joined(found)
            h = h + layer.feed_forward(layer.ffn_norm(h))
        return self.norm(h.unflatten(1, (count, size))[:, :, 1:])

    def loss(self, batch: HeadBatch, anchors: int = 32) -> tuple[Tensor, dict[str, float]]:
        """Cross-entropy to the target's laws, the mean over the K places.

        A row has at most `anchors` blocks; where they begin is drawn anew every time.
        """
        _, begins = batch.ahead(1)
        drawn = torch.rand(begins.shape, device=begins.device) * begins
        chosen = drawn.topk(min(anchors, begins.shape[1]), dim=1)
        at = chosen.indices
        hidden = self.forward(batch.columns(), at)
        return block_loss(list(hidden.unbind(2)), batch, at)
