"""Layers that keep a state: linear attention, Mamba, short convolutions, beside attention or alone.

A state can't be rolled back, and a tree has one for each of its branches. So the cache holds what
such a layer read, an entry a token, as it holds keys and values of attention: committing, rolling
back and keeping a branch work on entries of any layer. A call runs the layer over the entries that
an input may see, in their order, from the state behind those that are certain; branches of a tree
are lines of their own in that run. The layers are the model's own, with their kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy, deepcopy
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ...engine.cache import KVCache, SpreadCache
from ...errors import InputError
from ..repacked import Way
from .entry_cache import EntryCache, Folding, Run, States, runs_of

STATES = ("conv", "recurrent")  # as transformers calls them


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
        self._templates: dict[int, Any] = {}  # transformers' layers of a cache, behind one token
        self._width = 0
        self._calls: dict[int, Any] = {}  # what a module was given
        self._running: list[Any] = []  # modules, and what they were given

    @contextmanager
    def found_in(self, network: nn.Module, view: Cache, scratch: Cache) -> Iterator[None]:
        """Surround a call over `view`, which tells `ask` who asks for the states in `scratch`."""
        self.modules, self._calls, hooks = {}, {}, []
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
        self._templates = {number: deepcopy(scratch.layers[number]) for number in self.modules}
        self.stepwise = any(self._forgets(number, view) for number in self.modules)
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
        self._width = _inputs(*self._calls[number]).shape[-1]

    def _forgets(self, number: int, view: Cache) -> bool:
        """Test whether two tokens at once say the same behind any state."""
        template, outs = self._templates[number], []
        inputs = _inputs(*self._calls[number])
        inputs = torch.linspace(-1, 1, 2 * self._width).to(inputs).view(1, 2, -1)
        for scale in (0, 1):
            layer = deepcopy(template)
            states = layer.recurrent_states
            states = layer.conv_states if all(s is None for s in states.values()) else states
            for state in states.values():
                if state is not None:
                    state.copy_(scale * torch.linspace(-1, 1, state.numel()).view_as(state))
            cache = Cache([layer] * (number + 1))
            args, named = self._calls[number]
            outs.append(_over(cache, view, self.modules[number], args, named, inputs))
        return all(torch.equal(*pair) for pair in zip(*outs, strict=True))

    def entries(self, rows: int, slots: int, like: Tensor) -> EntryCache:
        """An empty cache of what they read."""
        states = [_states_of(self._templates[number]) for number in sorted(self.modules)]
        return EntryCache(states, rows, slots, self._width, like)

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
        runs, folded = runs_of(
            seen, slots, entries.folded, certain, self.folding, entries.contained
        )
        call = Call(view, cache, entries, slots, length, runs, folded, self.stepwise)
        for place, number in enumerate(sorted(self.modules)):
            module, template = self.modules[number], self._templates[number]
            way = partial(call.run, module.forward, template, number, first + place, place)
            call.ways.append((module, "forward", way))
        return call


class Call:
    """A call of a model whose stateful layers run over entries of a cache.

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
        runs: Sequence[Run],
        folded: Tensor,
        stepwise: bool,
    ) -> None:
        self.view, self.cache, self.entries = view, cache, entries
        self.slots, self.length, self.runs, self.folded = slots, length, runs, folded
        self.stepwise = stepwise
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
        forward: Callable[..., Any],
        template: Any,
        number: int,
        layer: int,
        place: int,
        *args: Any,
        **named: Any,
    ) -> Any:
        """Call of a layer.

        Args:
            forward: its own.
            template: its part of transformers' cache.
            number, layer, place: in the model, in the cache and in its `EntryCache`.
            args, named: what the model gives it.
        """
        new = _inputs(args, named)
        self.cache.write(layer, _halved(new), self.slots)
        halves = [half[:, 0] for half in self.cache.read(layer, self.length)]
        kept = self.entries.states[place]
        answers: list[Tensor] = []
        for run in self.runs:
            lines = run.rows[:, None], run.slots
            inputs = torch.cat([half[lines] for half in halves], dim=-1)[..., : new.shape[-1]]
            own = _holding(template, [state[run.rows] for state in kept], run.fresh)
            cache = Cache([own] * (number + 1))
            steps = inputs.split(1, 1) if self.stepwise and not run.fresh else [inputs]
            outs = [_over(cache, self.view, forward, args, named, step) for step in steps]
            found = [torch.cat(each, dim=1) for each in zip(*outs, strict=True)]
            if not answers:
                answers = [out.new_zeros(*new.shape[:2], *out.shape[2:]) for out in found]
            for answer, out in zip(answers, found, strict=True):
                answer[run.inputs] = out[run.answers]
            if run.folds:
                for state, behind in zip(kept, _states_of(own), strict=True):
                    state[run.rows] = behind
        return answers[0] if len(answers) == 1 else tuple(answers)


_INPUTS = ("hidden_states", "x")
_TAKEN = (*_INPUTS, "cache", "cache_params", "past_key_values", "use_cache")


def _inputs(args: Sequence[Any], named: dict[str, Any]) -> Tensor:
    """What a layer reads, `[R, N, width]`."""
    found = [*args[:1], *(named[name] for name in _INPUTS if name in named)]
    if not found or not isinstance(found[0], Tensor):
        raise InputError("its layers keep a state and read something else than hidden states")
    return found[0]


def _over(
    cache: Cache,
    view: Cache,
    layer: Callable[..., Any],
    args: Sequence[Any],
    named: dict[str, Any],
    inputs: Tensor,
) -> list[Tensor]:
    """What a layer makes of inputs `[S, T, width]` over `cache`, in place of what it was given.

    Masks and positions are of the whole call, and it is given none.
    """
    own = {id(_inputs(args, named)): inputs, id(view): cache}

    def swapped(value: Any) -> Any:
        return own.get(id(value), None if isinstance(value, Tensor) else value)

    taken = {name: swapped(value) for name, value in named.items() if name in _TAKEN}
    out = layer(*map(swapped, args), **taken)
    return [out] if isinstance(out, Tensor) else list(out)


def _entries_in(cache: KVCache) -> tuple[EntryCache, int]:
    """The part of a cache that holds what stateful layers read, and its first layer's number."""
    placed = cache.placed if isinstance(cache, SpreadCache) else [(cache, 0)]
    for layer, (part, _) in enumerate(placed):
        if isinstance(part, EntryCache):
            return part, layer
    raise ValueError("the cache is of a model without stateful layers")


def _halved(inputs: Tensor) -> Tensor:
    """Inputs `[R, N, width]` as a cache of one head stores them, `[2, R, 1, N, ⌈width / 2⌉]`."""
    width = inputs.shape[-1]
    even = nn.functional.pad(inputs, (0, width % 2))
    return torch.stack(even.chunk(2, dim=-1))[:, :, None]


def _states_of(layer: Any) -> States:
    """The states in a layer of transformers' cache."""
    found: list[Any] = [getattr(layer, f"{kind}_states", None) for kind in STATES]
    if not all(isinstance(states, dict) for states in found):
        raise InputError("its layers keep a state in a form that speculation does not know")
    return [state for states in found for state in states.values() if state is not None]


def _holding(template: Any, states: States, fresh: bool) -> Any:
    """A layer of transformers' cache that holds these states; a `fresh` one is to be given some."""
    layer, rest = copy(template), iter(states)
    for kind in STATES:
        held = getattr(template, f"{kind}_states")
        own = {n: None if state is None else next(rest) for n, state in held.items()}
        setattr(layer, f"{kind}_states", own)
        setattr(layer, f"is_{kind}_states_initialized", {n: s is not None for n, s in own.items()})
    layer.has_previous_state = dict.fromkeys(layer.conv_states, not fresh)
    return layer
