"""Networks that are made no larger than the file of weights that fills them.

A config says how large a network is, and a wrong or hostile one (ten million layers) would fill the
memory long before its weights are compared. So what a module registers is counted while it is made.
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules import module

from ..errors import InputError, reason
from .weights import FileHeader

M = TypeVar("M", bound=nn.Module)
Tensors = Mapping[str, Tensor] | Mapping[str, FileHeader]

# modules and tensors that a network may have beyond those of its file, which may be quantized
_TIMES, _MORE = 16, 4096
_ELEMENTS = 2**26  # values: of derived tables, and of what is made and then dropped
_LAYERS = re.compile(r"(num|n)_(\w+_)?(layers?|blocks?)|\w*depths?|layers")


def build_empty(build: Callable[[], M], tensors: Tensors, source: str | Path, kind: str) -> M:
    """A network on the meta device: no weights are drawn that are then overwritten.

    Raises:
        InputError: the config makes no such network, or one that is far larger than its weights.
    """
    try:
        with torch.device("meta"), bounded_init(tensors, source):
            return build()
    except InputError:
        raise
    except (ArithmeticError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(f"{source} is no {kind}: {reason(error)}") from error


@contextmanager
def bounded_init(tensors: Tensors, source: str | Path) -> Iterator[None]:
    """Stop the construction of modules, by this thread, once they outgrow a file's tensors.

    Raises:
        InputError: in the middle of making a module that can't fit.
    """
    thread, most = threading.get_ident(), _TIMES * len(tensors) + _MORE
    room = _TIMES * _values(tensors) + _ELEMENTS
    made = values = 0

    def count(_: nn.Module, __: str, thing: Tensor | nn.Module | None) -> None:
        nonlocal made, values
        if threading.get_ident() != thread:
            return
        made += 1
        values += thing.numel() if isinstance(thing, Tensor) else 0
        if made > most or values > room:
            raise _misfit(tensors, source)

    with ExitStack() as hooks:
        for register in (
            module.register_module_parameter_registration_hook,
            module.register_module_buffer_registration_hook,
            module.register_module_module_registration_hook,
        ):
            hooks.callback(register(count).remove)
        yield


def check_layers(config: Any, tensors: Tensors, source: str | Path) -> None:
    """Raise an `InputError` if a config has far more layers than its weights have tensors.

    Before any library makes lists of them.
    """
    if isinstance(config, dict):
        for name, value in config.items():
            layers = isinstance(value, int) and _LAYERS.fullmatch(str(name))
            if layers and value > _TIMES * len(tensors) + _MORE:
                raise _misfit(tensors, source)
            check_layers(value, tensors, source)
    elif isinstance(config, list):
        for value in config[:_MORE]:
            check_layers(value, tensors, source)


def _values(tensors: Tensors) -> int:
    return sum(math.prod(tensor.shape) for tensor in tensors.values())


def _misfit(tensors: Tensors, source: str | Path) -> InputError:
    return InputError(
        f"{source} asks for a network far larger than its weights, {len(tensors)} tensors of "
        f"{_values(tensors):,} values; take the config that was saved with them"
    )
