"""Replaced methods of layers, for a while; their classes and weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


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
