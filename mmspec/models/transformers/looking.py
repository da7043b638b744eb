"""Attention weights of a model of transformers, as its layers compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from .causal import CausalDecoder

See = Callable[[int, Tensor], None]
"""Is told a layer's number, and its attention weights `[R, H, N, length]`."""


@contextmanager
def attention_told(decoder: CausalDecoder, see: See) -> Iterator[None]:
    """Surround calls of a model whose attention layers tell `see` their weights."""

    def read(layer: int, module: Any, args: Any, out: Any) -> None:
        see(layer, out[1])

    hooks, config = [], decoder.config
    before = config._attn_implementation
    config._attn_implementation = "eager"  # the others tell none
    try:
        for layer, block in enumerate(decoder.blocks()):
            attention = getattr(block, "self_attn", None)
            if attention is not None:
                hooks.append(attention.register_forward_hook(partial(read, layer)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        config._attn_implementation = before
