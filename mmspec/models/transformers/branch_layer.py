"""A layer that keeps a state, run as transformers has it over each branch of a tree by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy, deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from ...errors import InputError
from .entry_cache import Run, States

STATES = ("conv", "recurrent")  # as transformers calls them


class BranchLayer:
    """A layer that runs over each branch of a tree by itself.

    Args:
        number: of the layer in the model.
        module: the layer, which keeps a state.
        template: its part of transformers' cache, behind one token.
        view: stands for the cache in the model's eyes.
        args, named: what a call of one token gave it.

    Attributes:
        packed: its runs are over lines, see `runs_of`.
        width: of what is kept of a token: what the layer reads.
        stepwise: whether it goes on from a state a token at a time only.
    """

    packed = False

    def __init__(
        self,
        number: int,
        module: nn.Module,
        template: Any,
        view: Cache,
        args: Sequence[Any],
        named: dict[str, Any],
    ) -> None:
        self.number, self.template = number, template
        self.width = inputs_of(args, named).shape[-1]
        self.stepwise = self._forgets(module, view, args, named)

    def _forgets(
        self, module: nn.Module, view: Cache, args: Sequence[Any], named: dict[str, Any]
    ) -> bool:
        """Test whether two tokens at once say the same behind any state."""
        outs = []
        inputs = torch.linspace(-1, 1, 2 * self.width).to(inputs_of(args, named)).view(1, 2, -1)
        for scale in (0, 1):
            layer = deepcopy(self.template)
            states = layer.recurrent_states
            states = layer.conv_states if all(s is None for s in states.values()) else states
            for state in states.values():
                if state is not None:
                    state.copy_(scale * torch.linspace(-1, 1, state.numel()).view_as(state))
            cache = Cache([layer] * (self.number + 1))
            outs.append(_over(cache, view, module, args, named, inputs))
        return all(torch.equal(*pair) for pair in zip(*outs, strict=True))

    def states(self, like: Tensor) -> States:
        """Its states of one row, in front of the first token or elsewhere; `like` is not asked."""
        return _states_of(self.template)

    def read(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Entries to keep of inputs `[R, N, width]`, and what `write` is given: themselves."""
        return x, x

    def over(
        self,
        run: Run,
        entries: Tensor,
        states: States,
        forward: Callable[..., Any],
        view: Cache,
        args: Sequence[Any],
        named: dict[str, Any],
    ) -> tuple[list[Tensor], States]:
        """Answers of the layer's own `forward` to a run's lines `[S, T, …]`, and states behind.

        Args:
            run: of lines.
            entries: `[S, T, width]`.
            states: in front of the lines.
            forward, view, args, named: of the call, for the masks and flags that it gives.
        """
        own = _holding(self.template, states, run.fresh)
        cache = Cache([own] * (self.number + 1))
        steps = entries.split(1, 1) if self.stepwise and not run.fresh else [entries]
        outs = [_over(cache, view, forward, args, named, step) for step in steps]
        return [torch.cat(each, dim=1) for each in zip(*outs, strict=True)], _states_of(own)

    def write(self, answers: Sequence[Tensor], x: Tensor) -> Any:
        """Result of the module for inputs `x`."""
        return answers[0] if len(answers) == 1 else tuple(answers)


_INPUTS = ("hidden_states", "x")
_TAKEN = (*_INPUTS, "cache", "cache_params", "past_key_values", "use_cache")


def inputs_of(args: Sequence[Any], named: dict[str, Any]) -> Tensor:
    """Inputs `[R, N, width]` of a layer."""
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
    """Outputs of a layer for inputs `[S, T, width]` over `cache`, in place of what it was given.

    Masks and positions are of the whole call, and it is given none.
    """
    own = {id(inputs_of(args, named)): inputs, id(view): cache}

    def swapped(value: Any) -> Any:
        return own.get(id(value), None if isinstance(value, Tensor) else value)

    taken = {name: swapped(value) for name, value in named.items() if name in _TAKEN}
    out = layer(*map(swapped, args), **taken)
    return [out] if isinstance(out, Tensor) else list(out)


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
