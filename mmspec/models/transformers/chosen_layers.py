"""Layers of a model, and calls in which each of them runs for some of the rows alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..decoders import UNNORMED
from ..repacked import patched


def lists_of(body: nn.Module, count: int) -> list[list[nn.Module]]:
    """Lists of `count` modules in a language model, the outer ones first."""
    lists = (part for part in body.modules() if isinstance(part, nn.ModuleList))
    return [[*part] for part in lists if count and len(part) == count]


def layers_of(body: nn.Module, count: int, ran: Collection[nn.Module]) -> list[nn.Module]:
    """The layers of a language model, first to last; none: it has no list of so many.

    Args:
        ran: modules that text reaches, so that a vision tower of as many layers is told apart;
            none: unknown.
    """
    lists = lists_of(body, count)
    reached = (layers for layers in lists if all(layer in ran for layer in layers))
    return next(reached, lists[0] if lists else [])


@contextmanager
def outputs_told(body: nn.Module, count: int, told: dict[nn.Module, int]) -> Iterator[None]:
    """Around a call: note of each of `lists_of` how many things it gives, if it runs.

    0 are hidden states as they are.
    """

    def note(layer: nn.Module, args: Any, out: Any) -> None:
        told[layer] = len(out) if isinstance(out, tuple | list) else 0

    every = [layer for layers in lists_of(body, count) for layer in layers]
    hooks = [layer.register_forward_hook(note) for layer in every]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def states_kept(
    blocks: Sequence[nn.Module], numbers: Collection[int]
) -> Iterator[dict[int, Tensor]]:
    """Around a call: hidden states that go into layers, by number; of some there may be none.

    `UNNORMED` is what the last one gives.
    """
    kept: dict[int, Tensor] = {}

    def keep(number: int, layer: nn.Module, args: tuple[Any, ...], named: Any) -> None:
        kept[number] = args[0] if args else named["hidden_states"]

    def keep_last(layer: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        kept[UNNORMED] = out[0] if isinstance(out, tuple | list) else out

    hooks = [
        blocks[number].register_forward_pre_hook(partial(keep, number), with_kwargs=True)
        for number in {*numbers} - {len(blocks), UNNORMED}
    ]
    if UNNORMED in numbers:
        hooks.append(blocks[-1].register_forward_hook(keep_last))
    try:
        yield kept
    finally:
        for hook in hooks:
            hook.remove()


def running(
    layers: Sequence[nn.Module], use: Sequence[Tensor | bool], outputs: dict[nn.Module, int]
) -> AbstractContextManager[None]:
    """Let every layer run for some rows alone: what skips it keeps its hidden states.

    Args:
        layers: take hidden states first, and give them first.
        use: by layer, True or False, or which rows `[R, 1, 1]`.
        outputs: see `outputs_told`; beside hidden states, a layer that does not run gives None.
    """
    part = [(layer, rows) for layer, rows in zip(layers, use, strict=True) if rows is not True]
    return patched(
        [
            (one, "forward", partial(_of_rows, one.forward, rows, outputs.get(one, 0)))
            for one, rows in part
        ],
        over=True,
    )


def _of_rows(
    forward: Callable[..., Any], rows: Tensor | bool, outputs: int, *args: Any, **kwargs: Any
) -> Any:
    hidden: Tensor = args[0] if args else kwargs["hidden_states"]
    if rows is False:
        return (hidden, *[None] * (outputs - 1)) if outputs else hidden
    out = forward(*args, **kwargs)
    if not outputs:
        return torch.where(torch.as_tensor(rows), out, hidden)
    return (torch.where(torch.as_tensor(rows), out[0], hidden), *out[1:])
