"""Layers of Llama's kind as they run at inference: few kernels each, over a static cache.

Projections of one input are joined, the norms' weights may be folded into the maps behind them, and
the two numbers of a rotary pair lie side by side, so that a layer takes fewer kernels than it does
as models are written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..engine.cache import KVCache
from .counted_tokens import ALL, CountedTokens
from .decoders import UNNORMED
from .merged_attention import attention_weights, merged_attention, worth_merging
from .parted_attention import parted_attention, parts_of
from .row_norm import RowNorm

_PAIRS = {torch.float32: torch.complex64, torch.float64: torch.complex128}


class Linear(Protocol):
    """A linear map of inputs `[…, in]` to `[…, out]`."""

    def __call__(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map `x`; `bias [out]` is added if there is one."""


@dataclass(frozen=True)
class LlamaLayer:
    """Maps of one layer.

    Attributes:
        qkv: queries, keys and values of what the first norm gives, a head after the other; the two
            numbers that a rotary factor turns lie side by side.
        out: of the heads' values.
        gate_up: both inputs of the SwiGLU, of what the second norm gives.
        down: of their product.
        norms: weights `[D]` of both norms; None: they are folded into the maps.
        bias: of `qkv`, None: none.
        qk_norm: weights `[heads + kv_heads, head_dim]` of the norms of queries and keys, in the
            same order of numbers; None: there are no such norms.
        first_norm: attention's inputs are normed; the first layer of EAGLE's heads takes them as
            they are.
        joined: vectors side by side in the inputs, each normed by itself; attention reads all of
            them, and its outputs are added to the last one. EAGLE-3's first layer joins two.
        residual: weight `[D]` of the norm in front of that sum; None: there is none.
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    norms: tuple[Tensor, Tensor] | None = None
    bias: Tensor | None = None
    qk_norm: Tensor | None = None
    first_norm: bool = True
    joined: int = 1
    residual: Tensor | None = None

    @property
    def maps(self) -> tuple[Linear, ...]:
        """The four linear maps."""
        return self.qkv, self.out, self.gate_up, self.down


class LlamaLayers:
    """Cached passes through layers.

    Args:
        layers: first to last.
        heads, kv_heads, head_dim: of attention.
        eps: of the norms.
        moves: devices to which activations move before a layer, by layer.
        act: of the gate.
    """

    _reads: Sequence[int] | None = None  # by layer, whose input its attention reads, see `reading`
    _see: Callable[[int, Tensor], None] | None = None  # is told attention weights, see `looking`

    def __init__(
        self,
        layers: Sequence[LlamaLayer],
        heads: int,
        kv_heads: int,
        head_dim: int,
        eps: float,
        moves: Mapping[int, torch.device] | None = None,
        act: Callable[[Tensor], Tensor] = F.silu,
    ) -> None:
        self._layers, self._moves, self._act = list(layers), moves or {}, act
        self.norm = RowNorm(eps)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim

    def __len__(self) -> int:
        return len(self._layers)

    def __getitem__(self, number: int) -> LlamaLayer:
        return self._layers[number]  # which also makes them iterable

    @contextmanager
    def reading(self, reads: Sequence[int]) -> Iterator[None]:
        """Surround calls in which layer n's attention reads what goes into layer `reads[n]`."""
        self._reads = reads
        try:
            yield
        finally:
            self._reads = None

    @contextmanager
    def looking(self, see: Callable[[int, Tensor], None]) -> Iterator[None]:
        """Surround calls that tell `see` their attention weights, layer by layer."""
        self._see = see
        try:
            yield
        finally:
            self._see = None

    def __call__(
        self,
        x: Tensor,
        rotary: Tensor,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor | None,
        use: Sequence[Tensor | bool] | None = None,
        read: dict[int, Tensor] | None = None,
        some: CountedTokens = ALL,
    ) -> Tensor:
        """Hidden states `[R, N, D]` behind the last layer, before any norm.

        Args:
            x: inputs `[R, N, D]`, wider by what the first layer joins.
            rotary: complex factors `[N, head_dim / 2]` or `[R, N, head_dim / 2]`.
            cache, slots, length, mask, use: see `Decoder.forward`.
            read: is given what goes into each layer, and what is returned; None: nobody asks.
            some: the tokens that count, whatever `use` says of rows; others' states are zeros.
        """
        rows, n, _ = x.shape
        heads, kv = self.heads, self.kv_heads
        parts = parts_of(mask)
        entries = 0 if parts else worth_merging(mask, n, length)
        turn = rotary[:, None] if rotary.ndim == 2 else rotary[:, :, None]
        h = seen = some.of(x.flatten(0, 1))
        for number, layer in enumerate(self._layers):
            if number in self._moves:
                device = self._moves[number]
                h, turn = h.to(device), turn.to(device)
                mask = None if mask is None else mask.to(device)
                slots = slots.to(device) if isinstance(slots, Tensor) else slots
            if read is not None:
                read[number] = some.spread(h).unflatten(0, (rows, n))
            if use is not None and use[number] is False:
                continue
            before = h
            if self._reads is None or self._reads[number] == number:
                seen = h
            elif number in self._moves:
                seen = seen.to(h.device)
            first, second = layer.norms or (None, None)
            if layer.joined > 1:
                h, normed = self._parted(layer, seen)
            else:
                normed = self.norm(seen, first) if layer.first_norm else seen
            qkv = some.spread(layer.qkv(normed, layer.bias))
            qkv = qkv.view(rows, n, heads + 2 * kv, self.head_dim)
            qk = qkv[:, :, : heads + kv]
            if layer.qk_norm is not None:
                qk.copy_(self.norm(qk, layer.qk_norm))
            if qkv.dtype in _PAIRS:
                qk.view(_PAIRS[qkv.dtype]).mul_(turn)
            else:
                pairs = torch.view_as_complex(qk.float().unflatten(-1, (-1, 2)))
                qk.copy_(torch.view_as_real(pairs * turn).flatten(-2))
            new = qkv[:, :, heads:].unflatten(2, (2, kv)).permute(2, 0, 3, 1, 4)
            cache.write(number, new, slots)
            keys, values = cache.read(number, length)
            queries = qkv[:, :, :heads].transpose(1, 2)
            if self._see is not None:
                self._see(number, attention_weights(queries, keys, mask))
            if parts and mask is not None:
                out = parted_attention(queries, keys, values, mask, parts)
            else:
                out = merged_attention(queries, keys, values, mask, entries)
            h = h + layer.out(some.of(out.transpose(1, 2).reshape(rows * n, -1)))
            gate, up = layer.gate_up(self.norm(h, second)).chunk(2, dim=-1)
            h = h + layer.down(self._act(gate) * up)
            if use is not None and isinstance(counts := use[number], Tensor):
                counts = counts.to(h.device)
                counts = some.of(counts.expand(rows, n, 1).reshape(-1, 1))
                h = torch.where(counts, h, before)
        out = some.spread(h).unflatten(0, (rows, n))
        if read is not None:
            read[UNNORMED] = out
        return out

    def _parted(self, layer: LlamaLayer, x: Tensor) -> tuple[Tensor, Tensor]:
        """Part vectors side by side: what attention's outputs join `[M, D]`, and what it reads."""
        parts = x.unflatten(-1, (layer.joined, -1))
        normed = self.norm(parts)
        last = parts[:, -1] if layer.residual is None else normed[:, -1] * layer.residual
        return last, normed.flatten(-2)
