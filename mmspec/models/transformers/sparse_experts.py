"""Layers of sparse experts in transformers' models: what calls choose, and how much they touch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...engine.cache import KVCache, SpreadCache, StaticCache
from ..repacked import Way, patched
from .rounded_experts import RoundedExperts, is_experts

Choices = dict[int, Tensor]
"""By layer, the experts `[R · N, K]` that a call has chosen."""


class SparseExperts:
    """The layers of sparse experts of a model, over the calls of its decoder.

    A cache may keep which experts tokens chose, an entry a token like its keys and values: what a
    round takes back, a batch drops or a branch of a tree moves goes for them as well.

    Args:
        body: a transformers model; with no such layers nothing here does anything.

    Attributes:
        layers: by layer, the module that routes and its experts.
        each: experts that a token chooses, as a call has shown; 0: none has run.
        kept: whether caches keep what tokens choose.
        prompt: columns of the generation's prompt; calls for these are not counted.
        touched: experts of a layer, the mean over layers, that every counted call has touched; on
            the model's device, so that nothing waits for it.
        calls: how many there were, counted or not.
    """

    kept = False
    each = prompt = calls = 0

    def __init__(self, body: nn.Module) -> None:
        pairs = [(parent, m) for parent in body.modules() for m in parent.children()]
        self.layers = [(parent, experts) for parent, experts in pairs if is_experts(experts)]
        self.touched: list[Tensor] = []
        self._rounded = [RoundedExperts(experts) for _, experts in self.layers]

    @property
    def counts(self) -> list[int]:
        """Experts of every layer."""
        layers: list[Any] = [experts for _, experts in self.layers]
        return [len(experts.down_proj) for experts in layers]

    @property
    def per_call(self) -> list[float]:
        """`touched`, on the host."""
        return torch.stack(self.touched).tolist() if self.touched else []

    def forget(self) -> None:
        """Forget what was counted."""
        self.touched = []

    def entries(self, rows: int, slots: int, device: torch.device) -> StaticCache | None:
        """An empty cache of what tokens choose, plus 1, a head a layer; None: it is not kept."""
        if not (self.kept and self.each):
            return None
        return StaticCache(1, rows, len(self.layers), slots, self.each, torch.int16, device)

    def ways(self, weights: str | None) -> list[Way]:
        """For `patched`: experts run on rounded weights, see `rounded.linear`; None: as they are.

        Raises:
            InputError: the weights can't be rounded.
        """
        if weights is None:
            return []
        return [(one.experts, "forward", one.of(weights)) for one in self._rounded]

    @contextmanager
    def call(
        self, cache: KVCache | None, slots: int | Tensor, length: int, mask: Tensor, whole: bool
    ) -> Iterator[None]:
        """Surround a call of the model, and note what its tokens choose.

        Args:
            cache: see `Decoder.forward`; None: the call is a trial.
            slots, length: likewise.
            mask: added to scores of attention `[R or 1, 1, N, length]`.
            whole: all layers run, for all rows.
        """
        if not self.layers:
            yield
            return
        ways, chosen = self._restricted(cache, slots, mask), Choices()
        ways += [
            (experts, "forward", partial(_noted, experts.forward, chosen, n))
            for n, (_, experts) in enumerate(self.layers)
        ]
        with patched(ways, over=True):
            yield
        self.calls += 1
        if chosen:
            self.each = max(one.shape[-1] for one in chosen.values())
        if cache is None or not whole or len(chosen) < len(self.layers):
            return
        self._check(chosen)
        self._keep(cache, slots, mask.shape[-2], chosen)
        if length - mask.shape[-2] >= self.prompt - 1:
            touched = torch.zeros(
                len(chosen), max(self.counts) + 1, dtype=torch.bool, device=chosen[0].device
            )
            for layer, one in chosen.items():
                touched[layer, one.flatten()] = True
            self._count(touched[:, :-1])

    def _restricted(self, cache: KVCache | None, slots: int | Tensor, mask: Tensor) -> list[Way]:
        """For `patched`: what else the call does with the modules that route."""
        return []

    def _check(self, chosen: Choices) -> None:
        """Raise an `InputError` if these may not be chosen."""

    def _keep(self, cache: KVCache, slots: int | Tensor, width: int, chosen: Choices) -> None:
        """Let the cache keep what was chosen by `width` tokens a row."""
        if (entries := kept_in(cache, len(self.layers))) is not None:
            of_layers = [chosen[n].unflatten(0, (-1, width)) for n in range(len(chosen))]
            new = (torch.stack(of_layers, 1) + 1).to(torch.int16)  # [R, layers, N, K]
            entries.write(0, new.expand(2, *new.shape), slots)

    def _count(self, touched: Tensor) -> None:
        """Count a call's experts `[layers, experts]`."""
        self.touched.append(touched.sum() / len(touched))


def kept_in(cache: KVCache, layers: int) -> StaticCache | None:
    """The part of a cache that keeps what tokens chose; None: it has none."""
    for part in cache.parts if isinstance(cache, SpreadCache) else []:
        if part.data.dtype == torch.int16 and part.data.shape[3] == layers:
            return part
    return None


def _noted(
    forward: Callable[..., Tensor], chosen: Choices, layer: int, *args: Any, **named: Any
) -> Tensor:
    """Run experts of hidden states, their numbers and their factors; note the numbers."""
    chosen[layer] = args[1] if len(args) > 1 else named["top_k_index"]
    return forward(*args, **named)
