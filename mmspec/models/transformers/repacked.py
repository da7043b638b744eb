"""Linear layers of a transformers model on a processor, where `F.linear` packs them in every call.

A copy of each weight, packed once, takes several rows for little more than one (see `RowLinear`);
one row alone is as fast without. The model's own weights and classes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..linear import RowLinear, packable

MOST = 2**30  # bytes of weights: larger models keep no copy


@contextmanager
def patched(
    ways: Iterable[tuple[nn.Module, str, Callable[..., Tensor]]], over: bool = False
) -> Iterator[None]:
    """Replace methods of layers, by name, by functions; unless `over`, what is patched stays."""
    changed = []
    for layer, name, way in ways:
        own = vars(layer).get(name)
        if own is None or over:
            vars(layer)[name] = way
            changed.append((layer, name, own))
    try:
        yield
    finally:
        for layer, name, own in changed:
            del vars(layer)[name]
            if own is not None:
                vars(layer)[name] = own


class Repacked:
    """Packed copies of a model's linear layers, made anew where a weight has changed.

    A change is seen by what the weight makes of one vector, which costs what one token does: some
    ways to change it (`weight.data += …`, as merged adapters do) leave no other trace.
    """

    def __init__(self) -> None:
        self._kept: dict[nn.Linear, tuple[Tensor, RowLinear]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": {}}  # a copy packs its own weights; packed ones can't be copied

    def running(self, parts: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """The linear layers in `parts` run on packed copies meanwhile; in inference mode."""
        layers = {m for part in parts for m in part.modules() if _plain(m)}
        if sum(layer.weight.nbytes for layer in layers) > MOST:
            layers = set()
        self._kept = {layer: kept for layer, kept in self._kept.items() if layer in layers}
        copies = [(layer, self._packed(layer)) for layer in layers]
        return patched((one, "forward", partial(_forward, one, packed)) for one, packed in copies)

    def _packed(self, layer: nn.Linear) -> RowLinear:
        weight = layer.weight.detach()
        trace = weight @ torch.linspace(0.5, 1.5, weight.shape[1], dtype=weight.dtype)
        kept = self._kept.get(layer)
        if kept is None or not torch.equal(kept[0], trace):
            kept = self._kept[layer] = trace, RowLinear(weight)
        return kept[1]


def _plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a linear layer as torch has it, over a weight of its own that can be packed.

    One that is quantized, or computed anew in every call (pruned, normed), is left alone.
    """
    if type(layer) is not nn.Linear:
        return False
    weight = layer._parameters.get("weight")
    return type(weight) is nn.Parameter and packable(weight)


def _forward(layer: nn.Linear, packed: RowLinear, x: Tensor) -> Tensor:
    bias: Tensor | None = layer.bias
    if x.numel() == layer.in_features:
        return F.linear(x, layer.weight, bias)
    return packed(x) if bias is None else packed(x) + bias
