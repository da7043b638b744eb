"""Linear layers of a transformers model on a processor, where `F.linear` packs them in every call.

A copy of each weight, packed once, takes several rows for little more than one (see `RowLinear`);
one row alone is as fast without. The model's own weights and classes stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from .linear import RowLinear
from .swapped import swapped

MOST = 2**30  # bytes of weights: larger models keep no copy


class Repacked:
    """Packed copies of a model's linear layers, made anew where a weight has changed."""

    def __init__(self) -> None:
        self._kept: dict[nn.Linear, tuple[tuple[int, int], RowLinear]] = {}

    def running(self, parts: Iterable[nn.Module]) -> AbstractContextManager[None]:
        """The linear layers in `parts` run on packed copies meanwhile; in inference mode."""
        layers = {m for part in parts for m in part.modules() if type(m) is nn.Linear}
        if sum(layer.weight.nbytes for layer in layers) > MOST:
            layers = set()
        self._kept = {layer: kept for layer, kept in self._kept.items() if layer in layers}
        copies = [(layer, packed) for layer in layers if (packed := self._packed(layer)).packed]
        return swapped((one, "forward", partial(_forward, one, packed)) for one, packed in copies)

    def _packed(self, layer: nn.Linear) -> RowLinear:
        state = layer.weight.data_ptr(), layer.weight._version
        kept = self._kept.get(layer)
        if kept is None or kept[0] != state:
            kept = self._kept[layer] = state, RowLinear(layer.weight)
        return kept[1]


def _forward(layer: nn.Linear, packed: RowLinear, x: Tensor) -> Tensor:
    """What the layer makes of `x [..., in]`."""
    bias: Tensor | None = layer.bias
    if x.numel() == layer.in_features:
        return F.linear(x, layer.weight, bias)
    out = packed(x.reshape(-1, layer.in_features)).view(*x.shape[:-1], -1)
    return out if bias is None else out + bias
