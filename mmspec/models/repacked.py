"""Linear layers of a model on a processor, where `F.linear` packs them in every call.

A copy of each weight, packed once, takes several rows for little more than one (see `RowLinear`).
The copies may be rounded. The model's own weights and classes stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from ..errors import InputError
from .linear import packable
from .llama_layers import Linear
from .rounded import check_rounding, linear

MOST = 2**30  # bytes of weights: larger models keep no copy


Way = tuple[nn.Module, str, Callable[..., Tensor]]  # a layer, a method's name, what takes its place


@contextmanager
def patched(ways: Iterable[Way], over: bool = False) -> Iterator[None]:
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
        self._kept: dict[nn.Linear, tuple[str | None, Tensor, Linear]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_kept": {}}  # a copy packs its own weights; packed ones can't be copied

    def running(
        self, parts: Iterable[nn.Module], weights: str | None = None
    ) -> AbstractContextManager[None]:
        """The linear layers in `parts` run on packed copies meanwhile; see `ways`."""
        return patched(self.ways(parts, weights))

    def ways(self, parts: Iterable[nn.Module], weights: str | None = None) -> list[Way]:
        """For `patched`: the linear layers in `parts` run on packed copies, in inference mode.

        Args:
            weights: how the copies are rounded, see `rounded.linear`; None: not at all.

        Raises:
            InputError: the weights can't be rounded.
        """
        can = _plain if weights is None else _own
        layers = {m for part in parts for m in part.modules() if can(m)}
        if weights is None and sum(layer.weight.nbytes for layer in layers) > MOST:
            layers = set()
        if weights is not None and not layers:
            raise InputError(f"it has no linear layers of torch's to round to {weights!r}")
        self._kept = {layer: kept for layer, kept in self._kept.items() if layer in layers}
        copies = [(layer, self._packed(layer, weights)) for layer in layers]
        return [(one, "forward", partial(_forward, one, packed)) for one, packed in copies]

    def _packed(self, layer: nn.Linear, weights: str | None) -> Linear:
        weight = layer.weight.detach()
        if weights is not None:
            check_rounding(weights, weight)
        seen = trace([weight])
        kept = self._kept.get(layer)
        if kept is None or kept[0] != weights or not torch.equal(kept[1], seen):
            kept = self._kept[layer] = weights, seen, linear(weight, weights)
        return kept[2]


def trace(weights: Iterable[Tensor]) -> Tensor:
    """Products `[…]` of some weights with one vector each: they change as the weights do."""
    made = []
    for weight in weights:
        vector = torch.linspace(0.5, 1.5, weight.shape[-1], dtype=weight.dtype)
        made.append((weight @ vector).flatten())
    return torch.cat(made)


def _plain(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a linear layer as torch has it, over a weight of its own that can be packed.

    One that is quantized, or computed anew in every call (pruned, normed), is left alone.
    """
    return _own(layer) and packable(layer.weight)


def _own(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """True for a linear layer as torch has it, over a weight of its own."""
    return type(layer) is nn.Linear and type(layer._parameters.get("weight")) is nn.Parameter


def _forward(layer: nn.Linear, packed: Linear, x: Tensor) -> Tensor:
    return packed(x, layer.bias)
