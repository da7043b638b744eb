"""Replaced methods of layers, for a while; their classes and weights stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from torch import Tensor, nn


@contextmanager
def patched(ways: Iterable[tuple[nn.Module, str, Callable[..., Tensor]]]) -> Iterator[None]:
    """Replace methods of layers, by name, by functions; what is patched already stays."""
    changed = []
    for layer, name, way in ways:
        if name not in vars(layer):
            vars(layer)[name] = way
            changed.append((layer, name))
    try:
        yield
    finally:
        for layer, name in changed:
            del vars(layer)[name]
