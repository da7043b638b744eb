"""A LlamaGen transformer as it runs at inference: its weights, rearranged once as `LlamaLayers`.

Plain and speculative decoding both run here. Layers may be spread over several devices.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import torch
import torch.nn.functional as F
from torch import Tensor

from ...engine.cache import KVCache, SpreadCache, StaticCache
from ...errors import InputError
from ..counted_tokens import ALL, CountedTokens
from ..fuzzy_layers import sources
from ..llama_layers import LlamaLayer, LlamaLayers
from ..placement import Placement
from ..rounded import folded, linear
from .transformer import LlamaGenBlock, LlamaGenTransformer


def arrange(block: LlamaGenBlock, device: torch.device, weights: str | None = None) -> LlamaLayer:
    """The maps of one block."""
    attention, mlp = block.attention, block.feed_forward
    both = torch.cat([mlp.w1.weight, mlp.w3.weight]).to(device)
    own = block.attention_norm.weight.to(device), block.ffn_norm.weight.to(device)
    qkv, gate_up, norms = folded(attention.wqkv.weight.to(device), both, own, weights)
    return LlamaLayer(
        linear(qkv, weights),
        linear(attention.wo.weight.to(device), weights),
        linear(gate_up, weights),
        linear(mlp.w2.weight.to(device), weights),
        norms,
    )


class LlamaGenDecoder:
    """Cached forward passes of a transformer's weights.

    Args:
        model: holds the weights.
        placement: which device runs what; None: the one where the weights are.
        weights: how those of linear layers are rounded, see `rounded.linear`; None: as they are.

    Raises:
        InputError: they can't be rounded.
    """

    reads: tuple[int, ...] = ()  # hidden states that calls leave for a head, see `CausalDecoder`
    weights: str | None = None
    packs = True

    def __init__(
        self,
        model: LlamaGenTransformer,
        placement: Placement | None = None,
        weights: str | None = None,
    ) -> None:
        config = model.config
        self.model, self.weights = model, weights
        blocks = [block for block in model.layers if isinstance(block, LlamaGenBlock)]
        device = model.output.weight.device
        self._arrange(blocks, placement or Placement.on(device, len(blocks)), config.norm_eps)
        self.embeddings = model.tok_embeddings.weight.detach().to(self.placement.main)
        head = self.placement.head
        self.head = linear(model.output.weight.to(head) * model.norm.weight.to(head), weights)

    def _arrange(self, blocks: Sequence[LlamaGenBlock], placement: Placement, eps: float) -> None:
        """Set the sizes, and rearrange the weights of the layers."""
        attention = blocks[0].attention
        self.placement, self._moves = placement, placement.moves
        self.head_dim, self.dim = attention.head_dim, attention.wo.out_features
        self.heads, self.kv_heads = attention.n_head, attention.n_kv_head
        layers = zip(blocks, placement.layers, strict=True)
        arranged = [arrange(block, device, self.weights) for block, device in layers]
        sizes = self.heads, self.kv_heads, self.head_dim
        self.layers = LlamaLayers(arranged, *sizes, eps, self._moves)

    def rounded(self, weights: str, hot_experts: int | None = None) -> LlamaGenDecoder:
        """The same network on rounded weights; its caches are laid out as this one's.

        Raises:
            InputError: it is to have hot experts, see `HotExperts`, and has no experts.
        """
        if hot_experts is not None:
            raise InputError("the target has no layers of sparse experts; leave out hot_experts")
        return LlamaGenDecoder(self.model, self.placement, weights)

    def fuzzy(self, size: int) -> AbstractContextManager[None]:
        """Surround calls in which `size` layers in a row are fuzzy, see `fuzzy_layers`."""
        return self.layers.reading(sources(len(self.layers), size))

    def embed(self, ids: Tensor) -> Tensor:
        """Inputs `[…, D]` of token ids `[…]`."""
        return F.embedding(ids, self.embeddings)

    def rotary(self, grid: int | None = None) -> Tensor:
        return self.model.rotary(grid).to(self.placement.main)

    def cache(self, rows: int, slots: int, room: int | None = None) -> KVCache:
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
        some: CountedTokens = ALL,
    ) -> Tensor:
        """Run N new inputs a row, see `Decoder.forward`.

        Inputs and results are on the placement's main device. `rotary` are complex factors
        `[N, head_dim / 2]` or `[R, N, head_dim / 2]`; hidden states have a mean square of 1.
        """
        self._read: dict[int, Tensor] = {}
        read = self._read if self.reads else None
        h = self.layers(x, rotary, cache, slots, length, mask, use, read, some)
        h = self.layers.norm(h.to(self.placement.head))
        return some.mapped(self.logits, h) if head else h.to(self.placement.main)

    def states(self, hidden: Tensor) -> Tensor:
        """Hidden states `[R, N, A · D]` that the last call leaves for a head; it gave `hidden`."""
        if not self.reads:
            return hidden
        found = [self._read.get(number, hidden).to(hidden.device) for number in self.reads]
        self._read = {}
        return torch.cat(found, dim=-1)

    def fuse(self, states: Tensor) -> Tensor:
        """Part of the target's hidden states that a head keeps: all."""
        return states

    def logits(self, hidden: Tensor) -> Tensor:
        """The output layer: logits `[..., V]` of hidden states `[..., D]`."""
        return self.head(hidden.to(self.placement.head)).to(self.placement.main)
