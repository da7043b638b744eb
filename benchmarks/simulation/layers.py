"""EasySpec: attentions of a draft model's layers on several devices at once.

Wu et al. 2025, see `mmspec.models.fuzzy_layers`: what goes into a group's first layer is read by
the attentions of all of them. Their MLPs follow one another.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any
from unittest.mock import patch

import numpy as np
from torch import Tensor

from mmspec.models.fuzzy_layers import sources
from mmspec.models.llama_layers import Linear, LlamaLayer, LlamaLayers

from .schedules import Process, Schedule, Text, World


@dataclass(frozen=True)
class Parts:
    """Parts of a draft model's call: seconds of an attention and of an MLP, and its layers."""

    attention: float
    mlp: float
    layers: int

    def groups(self, size: int) -> list[int]:
        """Layers whose attentions read one input, of groups of `size`, first to last."""
        return [len(list(same)) for _, same in groupby(sources(self.layers, size))]


def side_by_side(length: int, size: int, parts: Parts) -> Schedule:
    """Draft with groups of layers whose attentions run on all devices of the world.

    The first call of a round, which makes the entries anew, takes its layers in turn. What the
    devices tell each other takes no time.

    Args:
        length: tokens of a draft.
        size: layers of a group.
        parts: seconds of the draft model's; the rest of its call is norms, output layer and draw.
    """
    groups = parts.groups(size)

    def fuzzy(world: World) -> Process:
        whole, scale = world.costs.drafting(1), world.costs.scale
        attention, mlp = scale * parts.attention, scale * parts.mlp
        for layers in groups:
            beside = [world.devices[n % len(world.devices)] for n in range(layers)]
            yield world.env.all_of(
                [world.env.process(world.use(device, attention)) for device in beside]
            )
            yield from world.use(world.first, layers * mlp)
        yield from world.use(world.first, whole - parts.layers * (attention + mlp))

    def schedule(world: World, text: Text) -> Process:
        while text.going:
            drafted = min(length, text.room - 1)
            if drafted:
                yield from world.use(world.first, world.costs.drafting(1))
            for _ in range(drafted - 1):
                yield from fuzzy(world)
            yield from world.judge(drafted)
            text.at += text.accepted(drafted) + 1

    return schedule


@contextmanager
def parts_of() -> Iterator[list[Parts]]:
    """Time attentions and MLPs of every call with fuzzy layers that runs inside."""
    call, found = LlamaLayers.__call__, list[Parts]()
    clocks: dict[int, _Clocks] = {}

    def timed(self: Any, *told: Any, **others: Any) -> Any:
        if self._reads is None:
            return call(self, *told, **others)
        clock = clocks.setdefault(id(self), _Clocks(self))
        clock.attention = clock.mlp = 0.0
        own, self._layers = self._layers, clock.layers
        try:
            return call(self, *told, **others)
        finally:
            self._layers = own
            count = len(own)
            found.append(Parts(clock.attention / count, clock.mlp / count, count))

    with patch.object(LlamaLayers, "__call__", timed):
        yield found


def mean_parts(found: Sequence[Parts]) -> Parts | None:
    """Means over calls; None: there was none whose parts are known."""
    if not found:
        return None
    seconds = np.mean([(one.attention, one.mlp) for one in found], axis=0)
    return Parts(float(seconds[0]), float(seconds[1]), found[0].layers)


class _Clocks:
    """Layers whose maps tell when an attention or an MLP begins and ends."""

    def __init__(self, of: LlamaLayers) -> None:
        self.of, self.attention, self.mlp, self._since = of, 0.0, 0.0, 0.0
        self.layers = [self._timed(of[n]) for n in range(len(of))]

    def _timed(self, layer: LlamaLayer) -> LlamaLayer:
        return replace(
            layer,
            qkv=self._begins(layer.qkv),
            out=self._ends(layer.out, "attention"),
            gate_up=self._begins(layer.gate_up),
            down=self._ends(layer.down, "mlp"),
        )

    def _begins(self, linear: Linear) -> Linear:
        def begun(x: Tensor, bias: Tensor | None = None) -> Tensor:
            self._since = time.perf_counter()
            return linear(x, bias)

        return begun

    def _ends(self, linear: Linear, kind: str) -> Linear:
        def ended(x: Tensor, bias: Tensor | None = None) -> Tensor:
            y = linear(x, bias)
            setattr(self, kind, getattr(self, kind) + time.perf_counter() - self._since)
            return y

        return ended
