"""Check the arguments of users' calls against signatures; an error is one line.

The annotations say what is allowed, so that there is no second list to keep.
"""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from torch import Tensor

from ..errors import InputError
from ..methods import SpecConfig
from ..methods.config import PARTS, all_options
from ..registry import check_name

P = ParamSpec("P")
R = TypeVar("R")
_PLAIN: dict[Any, tuple[type, str, str]] = {  # what fits, one of it, several
    str: (str, "text", "texts"),
    bool: (bool, "True or False", "booleans"),
    int: (Integral, "an integer", "integers"),
    float: (Real, "a number", "numbers"),
    NoneType: (NoneType, "None", "None"),
    Tensor: (Tensor, "a tensor", "tensors"),
    bytes: (bytes, "bytes", "bytes"),
}


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function or method: arguments that its annotations forbid raise an `InputError`.

    A pipeline says in `instead` what to do in place of arguments that others have. Numbers of numpy
    are handed on as Python's, which libraries behind it want.
    """
    signature = inspect.signature(function)

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        check_arguments(function, kwargs, args[0] if args else None)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InputError(str(error)) from error
        check_arguments(function, {n: v for n, v in given.items() if n not in kwargs})
        own = {name: _own(value) for name, value in kwargs.items()}
        return function(*map(_own, args), **own)

    return call


def _own(value: Any) -> Any:
    """A number of numpy as Python's, also in a list; anything else as it is."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple) and any(isinstance(one, np.generic) for one in value):
        return [_own(one) for one in value]
    return value


def check_arguments(
    function: Callable[..., Any], given: Mapping[str, Any], owner: Any = None
) -> None:
    """Raise an `InputError` unless a function, or method of `owner`, takes what's given by name."""
    parameters = inspect.signature(function, eval_str=True).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name, value in given.items():
        if name in parameters:
            check_value(name, value, parameters[name].annotation)
        elif not free:
            instead = getattr(owner, "instead", {}).get(name)
            if instead is not None:
                raise InputError(f"{type(owner).__name__} takes no {name}: {instead}")
            for config in (
                n for n, p in parameters.items() if SpecConfig in get_args(p.annotation)
            ):
                _check_no_setting(name, config, parameters)
            check_name("argument", name, (n for n in parameters if n != "self"))


def _check_no_setting(name: str, config: str, arguments: Iterable[str]) -> None:
    """Raise an `InputError` if a name is nearly that of a setting, which belongs to `config`."""
    arguments = list(arguments)
    known = [*arguments, *PARTS, *all_options()]
    for near in difflib.get_close_matches(name, known, n=1, cutoff=0.7):
        if near in arguments:
            return
        said = "that" if near == name else repr(near)
        raise InputError(
            f"unknown argument {name!r}; {said} is a setting of a method: give it in {config}, as "
            f"SpecConfig('METHOD', {near}=…) or 'METHOD[{near}=…]'"
        )


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise an `InputError` unless a value is of the kind that an annotation says."""
    if not _fits(value, hint):
        told = f"{name} must be {_words(hint)}, not {_shown(value)}"
        inside = _components_that_fit(value, hint)
        raise InputError(f"{told}; its {' or '.join(inside)} is one" if inside else told)


def is_chat(value: Any) -> bool:
    """True for a conversation: chat messages, as transformers' pipelines take them."""
    messages = isinstance(value, list | tuple) and value
    return bool(messages) and all(isinstance(one, Mapping) for one in value)


def _fits(value: Any, hint: Any) -> bool:
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if kind is Literal:
        return isinstance(value, str) and value in parts
    if hint in _PLAIN:
        number = hint in (int, float) and isinstance(value, bool)
        return isinstance(value, _PLAIN[hint][0]) and not number
    if kind is tuple and Ellipsis not in parts:
        pair = isinstance(value, list | tuple) and len(value) == len(parts)
        return pair and all(map(_fits, value, parts))
    if kind in (list, tuple, Sequence):
        several = isinstance(value, list | tuple) or (
            kind is Sequence and isinstance(value, Sequence) and not isinstance(value, str)
        )
        return several and all(_fits(one, parts[0]) for one in value)
    if kind is Callable:
        return callable(value)
    kind = kind or hint
    unknown = kind in (Any, inspect.Parameter.empty) or not isinstance(kind, type)
    return unknown or isinstance(value, kind)


def _components_that_fit(value: Any, hint: Any) -> list[str]:
    """Names of a pipeline's components that are what is asked for in its place."""
    parts = getattr(value, "components", None)
    held = parts if isinstance(parts, Mapping) else {}
    return [name for name, part in held.items() if part is not None and _fits(part, hint)]


def _words(hint: Any, several: bool = False) -> str:
    """Name a type in the singular or the plural."""
    kind, parts = get_origin(hint), get_args(hint)
    if kind in (Union, UnionType):
        *front, last = dict.fromkeys(_words(part, several) for part in parts)
        return f"{', '.join(front)} or {last}" if front else last
    if kind is Literal:
        return f"{', '.join(parts[:-1])} or {parts[-1]}"
    if hint in _PLAIN:
        _, one, many = _PLAIN[hint]
        return many if several else one
    if kind in (list, tuple, Sequence):
        inner = " and ".join(_words(part, True) for part in parts if part is not Ellipsis)
        if kind is tuple and Ellipsis not in parts:
            inner = f"{len(parts)} {_words(parts[0], True)}"
        return f"{'lists' if several else 'a list'} of {inner}"
    name = "function" if kind is Callable else getattr(kind or hint, "__name__", str(hint))
    return f"{name}s" if several else _with_article(name)


def _shown(value: Any) -> str:
    if is_chat(value):
        return "chat messages, which a vision-language pipeline takes"
    if value is None or isinstance(value, str | int | float):
        return reprlib.repr(value)
    if isinstance(value, bytes):
        return "bytes"
    name = _with_article(type(value).__name__)
    if isinstance(value, list | tuple) and value:
        return f"{name} of {' and '.join(dict.fromkeys(type(one).__name__ for one in value))}"
    return name


def _with_article(name: str) -> str:
    return f"{'an' if name[0] in 'AEIOaeio' else 'a'} {name}"
