"""Layers that keep a state: linear attention, Mamba, short convolutions, beside attention or alone.

A state can't be rolled back, and a tree has one for each of its branches. So the cache holds what
such a layer read, an entry a token, as it holds keys and values of attention: committing, rolling
back and keeping a branch work on entries of any layer. A call runs the layer over the entries that
an input may see, in their order, from the state behind those that are certain. Mamba-2's layers
scan a tree in one pass (`TreeMixer`). Others are the model's own, with their kernels, and the
branches of a tree are lines of their own in that run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ...engine.cache import KVCache, SpreadCache
from ...errors import InputError
from ..repacked import Way
from .branch_layer import BranchLayer, inputs_of
from .entry_cache import EntryCache, Folding, Run, runs_of
from .mamba2 import TreeMixer


class RecurrentLayers:
    """The stateful layers of a model: found by a call, and run over entries of a cache.

    Attributes:
        modules: by number of the layer.
        folding: when their entries go into states.
        stepwise: whether they go on from a state a token at a time only.
    """

    stepwise = False

    def __init__(self) -> None:
        self.modules: dict[int, nn.Module] = {}
        self.folding = Folding()
        self._layers: dict[int, BranchLayer | TreeMixer] = {}
        self._calls: dict[int, Any] = {}  # what a module was given
        self._running: list[Any] = []  # modules, and what they were given

    @contextmanager
    def found_in(self, network: nn.Module, view: Cache, scratch: Cache) -> Iterator[None]:
        """Surround a call over `view`, which tells `ask` who asks for the states in `scratch`."""
        self.modules, self._layers, self._calls, hooks = {}, {}, {}, []
        for module in network.modules():
            if isinstance(getattr(module, "layer_idx", None), int):
                hooks.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                hooks.append(module.register_forward_hook(self._leave))
        try:
            yield
        finally:
            self._running = []
            for hook in hooks:
                hook.remove()
        for number, module in self.modules.items():
            args, named = self._calls[number]
            mixer = TreeMixer.of(module, inputs_of(args, named))
            told = module, deepcopy(scratch.layers[number]), view, args, named
            self._layers[number] = mixer or BranchLayer(number, *told)
        branching = [part for part in self._layers.values() if isinstance(part, BranchLayer)]
        self.stepwise = any(part.stepwise for part in branching)
        self._calls = {}

    def _enter(self, module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._running.append((module, args, named))

    def _leave(self, *_: Any) -> None:
        self._running.pop()

    def ask(self, number: int) -> None:
        """Notice that the module that runs now has states, as layer `number`."""
        if not self._running:
            raise InputError("its layers keep a state that no layer of its own asks for")
        self.modules[number], *self._calls[number] = self._running[-1]

    def entries(self, rows: int, slots: int, like: Tensor) -> EntryCache:
        """An empty cache of what they read."""
        parts = [self._layers[number] for number in sorted(self.modules)]
        width = max(part.width for part in parts)
        return EntryCache([part.states(like) for part in parts], rows, slots, width, like)

    def call(
        self,
        view: Cache,
        cache: KVCache,
        slots: int | Tensor,
        length: int,
        mask: Tensor,
        fold: bool,
    ) -> Call:
        """Prepare their part in a call of the model.

        Args:
            view: stands for the cache in the model's eyes.
            cache: with an `EntryCache` in it.
            slots, length: see `Decoder.forward`.
            mask: added to scores of attention `[R or 1, 1, N, length]`.
            fold: whether entries may go into states.
        """
        entries, first = _entries_in(cache)
        count, rows = mask.shape[-2], len(entries.folded)
        if isinstance(slots, int):
            slots = torch.arange(slots, slots + count, device=mask.device).expand(rows, -1)
        entries.called(slots)
        seen = (mask[:, 0] > -1).expand(rows, -1, -1).clone()
        seen.scatter_(2, slots[..., None], True)  # an input sees itself, whatever it is
        certain = entries.certain if fold else None
        told = entries.folded, certain, self.folding, entries.contained
        runs: dict[bool, list[Run]] = {}
        for packed in {part.packed for part in self._layers.values()}:
            runs[packed], folded = runs_of(seen, slots, *told, packed)
        call = Call(view, cache, entries, slots, length, runs, folded)
        for place, number in enumerate(sorted(self.modules)):
            module, part = self.modules[number], self._layers[number]
            way = partial(call.run, part, module.forward, first + place, place)
            call.ways.append((module, "forward", way))
        return call


class Call:
    """A call of a model whose stateful layers run over entries of a cache.

    Args:
        runs: see `runs_of`, by whether they are `packed`.

    Attributes:
        ways: for `patched`, of the layers meanwhile.
    """

    def __init__(
        self,
        view: Cache,
        cache: KVCache,
        entries: EntryCache,
        slots: Tensor,
        length: int,
        runs: dict[bool, list[Run]],
        folded: Tensor,
    ) -> None:
        self.view, self.cache, self.entries = view, cache, entries
        self.slots, self.length, self.runs, self.folded = slots, length, runs, folded
        self.ways: list[Way] = []

    def __enter__(self) -> Call:
        # states of a call that fails count for nothing: they are as if of slots to come
        moved = self.folded != self.entries.folded
        self.entries.folded[moved] = self.entries.slots + 1
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.entries.folded.copy_(self.folded)

    def run(
        self,
        part: BranchLayer | TreeMixer,
        forward: Callable[..., Any],
        layer: int,
        place: int,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Call of a layer.

        Args:
            part: the layer.
            forward: its own.
            layer, place: in the cache and in its `EntryCache`.
            args, named: what the model gives it.
        """
        new, rest = part.read(inputs_of(args, named))
        self.cache.write(layer, _halved(new), self.slots)
        halves = [half[:, 0] for half in self.cache.read(layer, self.length)]
        kept = self.entries.states[place]
        answers: list[Tensor] = []
        for run in self.runs[part.packed]:
            lines = run.rows[:, None], run.slots
            entries = _joined([half[lines] for half in halves], new.shape[-1])
            states = [state[run.rows] for state in kept]
            found, behind = part.over(run, entries, states, forward, self.view, args, named)
            if not answers:
                answers = [out.new_zeros(*new.shape[:2], *out.shape[2:]) for out in found]
            for answer, out in zip(answers, found, strict=True):
                answer[run.inputs] = out[run.answers]
            if run.folds:
                for state, moved in zip(kept, behind, strict=True):
                    state[run.rows] = moved
        return part.write(answers, rest)


def _entries_in(cache: KVCache) -> tuple[EntryCache, int]:
    """The part of a cache that holds what stateful layers read, and its first layer's number."""
    placed = cache.placed if isinstance(cache, SpreadCache) else [(cache, 0)]
    for layer, (part, _) in enumerate(placed):
        if isinstance(part, EntryCache):
            return part, layer
    raise ValueError("the cache is of a model without stateful layers")


def _joined(halves: Sequence[Tensor], width: int) -> Tensor:
    """What was `_halved`, of width `width`: halves of a wider layer's have zeros behind."""
    half = -(-width // 2)
    return torch.cat([part[..., :half] for part in halves], dim=-1)[..., :width]


def _halved(inputs: Tensor) -> Tensor:
    """Inputs `[R, N, width]` as a cache of one head stores them, `[2, R, 1, N, ⌈width / 2⌉]`."""
    width = inputs.shape[-1]
    even = nn.functional.pad(inputs, (0, width % 2))
    return torch.stack(even.chunk(2, dim=-1))[:, :, None]
