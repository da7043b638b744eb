"""Values that were read from JSON, held against the types of a dataclass's fields."""

from __future__ import annotations

import math
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def misfit(record: Any, where: str = "") -> str | None:
    """What is wrong with the first field of a dataclass whose value is not of its type.

    Whole numbers are numbers too, lists may stand for tuples, and numbers are finite.

    Args:
        where: names the record, in front of the field.
    """
    hints = get_type_hints(type(record))
    for field in fields(record):
        value = getattr(record, field.name)
        if (found := _misfit(value, hints[field.name], where + field.name)) is not None:
            return found
    return None


def _misfit(value: Any, hint: Any, name: str) -> str | None:
    origin, inner = get_origin(hint), get_args(hint)
    if hint is Any:
        return None
    if origin in (Union, UnionType):
        tried = [_misfit(value, kind, name) for kind in inner]
        return None if None in tried else tried[0]
    if origin is dict:
        if not isinstance(value, dict):
            return _told(value, "an object", name)
        found = (_misfit(each, inner[1], f"{name}: {key}") for key, each in value.items())
        return next((what for what in found if what is not None), None)
    if origin in (list, tuple):
        many = isinstance(value, list | tuple)
        if not many or (origin is tuple and len(value) != len(inner)):
            return _told(value, "a list" if origin is list else f"{len(inner)} numbers", name)
        kinds = inner * len(value) if origin is list else inner
        found = (_misfit(each, kind, name) for each, kind in zip(value, kinds, strict=True))
        return next((what for what in found if what is not None), None)
    if origin is Literal:
        return None if value in inner else _told(value, " or ".join(map(repr, inner)), name)
    if is_dataclass(hint):  # made of the value already
        return misfit(value, f"{name}: ")
    return None if _is(value, hint) else _told(value, _NAMES.get(hint, "nothing"), name)


_NAMES = {float: "a finite number", int: "a whole number", str: "text", bool: "true or false"}


def _is(value: Any, kind: type) -> bool:
    if kind is NoneType:
        return value is None
    if kind is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _told(value: Any, wanted: str, name: str) -> str:
    text = repr(value)
    return f"{name} must be {wanted}, not {text if len(text) <= 40 else text[:37] + '...'}"
