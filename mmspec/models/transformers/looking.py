"""Attention weights of a model of transformers, as its layers compute them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import ReferenceType

from torch import Tensor, nn

if TYPE_CHECKING:
    from .causal import CausalDecoder

See = Callable[[int, Tensor], None]
"""Is told a layer's number, and its attention weights `[R, H, N, length]`."""


@contextmanager
def attention_told(decoder: CausalDecoder, see: See) -> Iterator[None]:
    """Surround calls of a model whose attention layers tell `see` their weights, once each."""
    last: list[ReferenceType[Tensor]] = []

    def read(layer: int, module: Any, args: Any, out: Any) -> None:
        weights = out[1] if isinstance(out, tuple) and len(out) > 1 else None
        if not isinstance(weights, Tensor) or weights.ndim != 4:
            return
        if not last or last[0]() is not weights:  # a module around it may hand them on
            last[:] = [ReferenceType(weights)]
            see(layer, weights)

    hooks, config = [], decoder.config
    before = config._attn_implementation
    config._attn_implementation = "eager"  # the others tell none
    try:
        for layer, block in enumerate(decoder.blocks()):
            for module in attention_of(decoder.body, block):
                hooks.append(module.register_forward_hook(partial(read, layer)))
        yield
    finally:
        for hook in hooks:
            hook.remove()
        config._attn_implementation = before


def attention_of(body: nn.Module, block: nn.Module) -> list[nn.Module]:
    """Modules of a layer whose output may have attention weights behind it.

    They are of the class that the model states, under the name that it states, if it does: what
    goes by another name attends to something else. Of a model that states none they are all.
    """
    stated: Any = (getattr(body, "_can_record_outputs", None) or {}).get("attentions", [])
    known: list[tuple[type, str]] = []
    for one in stated if isinstance(stated, list | tuple) else [stated]:
        kind, within = getattr(one, "target_class", one), getattr(one, "layer_name", None) or ""
        if isinstance(kind, type):
            known.append((kind, within.strip(".")))
    found = []
    for name, module in block.named_modules():
        fits = [
            isinstance(module, kind) and (not within or f".{within}." in f".{name}.")
            for kind, within in known
        ]
        if name and (not known or any(fits)):
            found.append(module)
    return found
