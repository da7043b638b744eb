"""A LlamaGen transformer as it runs at inference: few kernels a layer, over a static cache.

The weights are those of `LlamaGenTransformer`, rearranged once: norms are folded into the linear
maps behind them, projections of one input are joined. Plain and speculative decoding both run here.
Layers may be spread over several devices.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.cache import KVCache, SpreadCache, StaticCache
from ..linear import RowLinear
from ..placement import Placement
from .transformer import LlamaGenBlock, LlamaGenTransformer


def arrange(block: LlamaGenBlock, device: torch.device) -> tuple[RowLinear, ...]:
    """Query-key-value, output, gate-and-up and down projections of one block."""
    attention, mlp = block.attention, block.feed_forward
    gate_up = torch.cat([mlp.w1.weight.to(device), mlp.w3.weight.to(device)])
    return (
        RowLinear(attention.wqkv.weight.to(device) * block.attention_norm.weight.to(device)),
        RowLinear(attention.wo.weight.to(device)),
        RowLinear(gate_up * block.ffn_norm.weight.to(device)),
        RowLinear(mlp.w2.weight.to(device)),
    )


class LlamaGenDecoder:
    """Cached forward passes of a transformer's weights.

    Args:
        model: holds the weights.
        placement: which device runs what; None: the one where the weights are.
    """

    reads: tuple[int, ...] = ()  # no hidden states but the last

    def __init__(self, model: LlamaGenTransformer, placement: Placement | None = None) -> None:
        config = model.config
        self.model = model
        blocks = [block for block in model.layers if isinstance(block, LlamaGenBlock)]
        device = model.output.weight.device
        self._arrange(blocks, placement or Placement.on(device, len(blocks)), config.norm_eps)
        self.embeddings = model.tok_embeddings.weight.detach().to(self.placement.main)
        head = self.placement.head
        self.head = RowLinear(model.output.weight.to(head) * model.norm.weight.to(head))

    def _arrange(self, blocks: Sequence[LlamaGenBlock], placement: Placement, eps: float) -> None:
        """Set the sizes, and rearrange the weights of the layers."""
        attention = blocks[0].attention
        self.placement, self._moves, self.eps = placement, placement.moves, eps
        self.heads, self.kv_heads = attention.n_head, attention.n_kv_head
        self.head_dim, self.dim = attention.head_dim, attention.wo.out_features
        layers = zip(blocks, placement.layers, strict=True)
        self.layers = [arrange(block, device) for block, device in layers]

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs `[…, D]` of token ids `[…]`."""
        return F.embedding(ids, self.embeddings)

    def rotary(self, grid: int | None = None) -> Tensor:
        return self.model.rotary(grid).to(self.placement.main)

    def cache(self, rows: int, slots: int) -> KVCache:
        """An empty cache for `rows` rows of at most `slots` tokens."""
        size, dtype = (rows, self.kv_heads, slots, self.head_dim), self.embeddings.dtype
        parts = [StaticCache(n, *size, dtype, device) for device, n in self.placement.runs]
        return SpreadCache(parts) if self._moves else parts[0]

    def forward(
        self,
        x: Tensor,
        rotary: Tensor,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        head: bool = True,
        use: list[Tensor | bool] | None = None,
    ) -> Tensor:
        """Run N new inputs a row, see `Decoder.forward`.

        Inputs and results are on the placement's main device. `rotary` are complex factors
        `[N, head_dim / 2]` or `[R, N, head_dim / 2]`; hidden states have a mean square of 1.
        """
        rows, n, _ = x.shape
        heads, kv = self.heads, self.kv_heads
        grouped = heads != kv
        turn = rotary[:, None] if rotary.ndim == 2 else rotary[:, :, None]
        h = x.reshape(rows * n, self.dim)
        for layer, (wqkv, wo, w13, w2) in enumerate(self.layers):
            if layer in self._moves:
                device = self._moves[layer]
                h, turn = h.to(device), turn.to(device)
                mask = None if mask is None else mask.to(device)
                slots = slots.to(device) if isinstance(slots, Tensor) else slots
            if use is not None and use[layer] is False:
                continue
            before = h
            qkv = wqkv(F.rms_norm(h, (self.dim,), eps=self.eps))
            qkv = qkv.view(rows, n, heads + 2 * kv, self.head_dim)
            qk = qkv[:, :, : heads + kv]
            if qkv.dtype in (torch.float32, torch.float64):
                torch.view_as_complex(qk.unflatten(-1, (-1, 2))).mul_(turn)
            else:
                pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2)))
                qk.copy_(torch.view_as_real(pairs * turn).flatten(-2))
            new = qkv[:, :, heads:].unflatten(2, (2, kv)).permute(2, 0, 3, 1, 4)
            cache.write(layer, new, slots)
            keys, values = cache.read(layer, length)
            out = F.scaled_dot_product_attention(
                qkv[:, :, :heads].transpose(1, 2), keys, values, attn_mask=mask, enable_gqa=grouped
            )
            h = h + wo(out.transpose(1, 2).reshape(rows * n, self.dim))
            gate, up = w13(F.rms_norm(h, (self.dim,), eps=self.eps)).chunk(2, dim=-1)
            h = h + w2(F.silu(gate) * up)
            if use is not None and isinstance(counts := use[layer], Tensor):
                counts = counts.to(h.device)
                h = torch.where(counts, h.view(rows, n, -1), before.view(rows, n, -1)).flatten(0, 1)
        h = F.rms_norm(h.to(self.placement.head), (self.dim,), eps=self.eps)
        h = h.view(rows, n, -1)
        return self.logits(h) if head else h.to(self.placement.main)

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states that a call leaves for a draft head: the last ones."""
        return hidden

    def fuse(self, states: Tensor) -> Tensor:
        """Part of the target's hidden states that a head keeps: all."""
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: logits `[..., V]` of hidden states `[..., D]`."""
        return self.head(hidden.to(self.placement.head)).to(self.placement.main)
