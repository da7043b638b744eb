"""Configurations as they are named: a method, with settings in brackets.

`gsd[group_size=3,window=32]` is the preset `gsd` with two fields of `SpecConfig` set. A list goes
on until the next field: `tree[tree_widths=3,2,1,siblings=top]`; `none` stands for no value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .config import SpecConfig
from .errors import InputError
from .knobs import KNOBS
from .methods import METHODS
from .registry import check_name

_OURS = ("method", "stride")  # the name itself, and what pipelines fill in
SETTINGS = tuple(field.name for field in fields(SpecConfig) if field.name not in _OURS)
KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a name"}


def config_of(speculation: SpecConfig | str) -> SpecConfig:
    """A configuration, or that of a name such as "scd" or "gsd[window=32]".

    Raises:
        InputError: it is neither, or the name is wrong.
    """
    if isinstance(speculation, SpecConfig):
        return speculation
    if not isinstance(speculation, str):
        raise InputError(
            "how to speculate is a SpecConfig, or a method's name such as 'scd' or "
            f"'gsd[window=32]', not {speculation!r}"
        )
    return parse_method(speculation)[1]


def parse_method(text: str) -> tuple[str, SpecConfig]:
    """The name of a row, which is the text without spaces, and its configuration."""
    form = re.fullmatch(r"([^\[\]]*)(?:\[([^\[\]]*)\])?", text)
    if form is None:
        raise InputError(f"{text!r} is no method: write NAME or NAME[SETTING=VALUE,…]")
    method = form[1].strip()
    check_name("method", method, METHODS)
    if form[2] is None:
        return method, SpecConfig(method=method)
    given = _split_settings(method, form[2])
    name = name_of(method, given)
    return name, with_settings(name, SpecConfig(method=method), given)


def _split_settings(method: str, text: str) -> dict[str, str]:
    """Texts by field; a part without `=` goes on with the list before it."""
    given: dict[str, str] = {}
    field = ""
    for part in text.split(","):
        left, equals, right = part.partition("=")
        if equals:
            field = left.strip()
            check_name(f"setting of {method}", field, SETTINGS)
            if field in given:
                raise InputError(f"{method}[{text}] sets {field} twice")
            given[field] = right.strip()
        elif field:
            given[field] += f",{part.strip()}"
        else:
            raise InputError(f"{method}[{text}]: a setting is NAME=VALUE, not {part.strip()!r}")
    return given


def _parse(name: str, field: str, text: str) -> Any:
    """The value that `text` stands for in a field of `SpecConfig`."""
    hint, optional, many = _kind(field)
    if optional and text == "none":
        return None
    try:
        values = tuple(_read(hint, part) for part in (text.split(",") if many else [text]))
    except (ValueError, KeyError):
        wanted = f"{KINDS[hint]}{', or several with commas between' if many else ''}"
        wanted += ", or none" if optional else ""
        raise InputError(f"{name}: {field} must be {wanted}, not {text!r}") from None
    return values if many else values[0]


def _read(kind: type, text: str) -> Any:
    if kind is bool:
        return {"true": True, "false": False}[text]
    value = kind(text)
    if not text or (kind is float and not math.isfinite(value)):
        raise ValueError(text)
    return value


@lru_cache
def _kind(field: str) -> tuple[type, bool, bool]:
    """The type of a field's value, whether it may be None, and whether it is a tuple of them."""
    hint = get_type_hints(SpecConfig)[field]
    optional = get_origin(hint) in (Union, UnionType)
    if optional:
        (hint,) = (part for part in get_args(hint) if part is not NoneType)
    many = get_origin(hint) is tuple
    if many:
        hint = get_args(hint)[0]
    return str if get_origin(hint) is Literal else hint, optional, many


def with_settings(name: str, config: SpecConfig, given: Mapping[str, str]) -> SpecConfig:
    """The configuration with some settings, as they are written; `name` is the whole's.

    Raises:
        InputError: a value is not of its kind, out of range, or of a knob that no part reads.
    """
    values = {field: _parse(name, field, text) for field, text in given.items()}
    try:
        found = replace(config, **values)
        found.check([field for field in given if field in KNOBS and values[field] is not None])
    except InputError as error:
        raise InputError(f"{name}: {error}") from error
    return found


def settings_of(config: SpecConfig, but: str | None = None) -> dict[str, str]:
    """The settings that are not the method's own, as they are written."""
    own = SpecConfig(method=config.method)
    changed = (f for f in SETTINGS if f != but and getattr(config, f) != getattr(own, f))
    return {field: text_of(getattr(config, field)) for field in changed}


def name_of(method: str, settings: Mapping[str, str]) -> str:
    """A method with settings, as `parse_method` reads it."""
    inner = ",".join(f"{field}={text}" for field, text in settings.items())
    return f"{method}[{inner}]" if inner else method


def text_of(value: Any) -> str:
    """A value as `_parse` reads it."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(text_of, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)
