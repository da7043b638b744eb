"""Methods as they are named on the command line, with settings, and at every value of their knob.

`gsd[group_size=3,window=32]` is the preset `gsd` with two fields of `SpecConfig` set. A list goes
on until the next field: `tree[tree_widths=3,2,1,siblings=top]`; `none` stands for no value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from ..config import SpecConfig
from ..errors import InputError
from ..methods import METHODS
from ..registry import check_name

_OURS = ("method", "stride")  # the name itself, and what pipelines fill in
SETTINGS = tuple(field.name for field in fields(SpecConfig) if field.name not in _OURS)
KINDS = {int: "an integer", float: "a number", bool: "true or false", str: "a name"}
ALL = "all"


class Place(NamedTuple):
    """Where a configuration stands among others.

    Attributes:
        family: the method with every setting but its knob's; equal for those that differ in the
            knob alone.
        knob: the field that trades speed against something else; None: the method has none.
        value: of the knob.
    """

    family: str
    knob: str | None
    value: float | None


def place(config: SpecConfig) -> Place:
    """The family of a configuration, and where on its knob it stands."""
    knob = METHODS[config.method].knob
    value = None if knob is None else getattr(config.resolved(), knob)
    return Place(_name(config.method, _differences(config, knob)), knob, value)


def role(name: str, config: SpecConfig) -> Literal["baseline", "method", "sceptic"]:
    """What a report calls the row; the baseline is plain decoding without any settings."""
    found = METHODS[config.method].role
    return "method" if found == "baseline" and name != "plain" else found


def split_methods(text: str) -> tuple[str, ...]:
    """Names apart: commas outside of brackets divide."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\]?)+", text)
    return tuple(name for name in (part.strip() for part in parts) if name)


def parse_methods(names: Sequence[str], sweep: Sequence[str] = ()) -> dict[str, SpecConfig]:
    """Configurations by name, settings of a method beside each other, safe before fast.

    Args:
        names: methods with or without settings; plain is added when it is missing.
        sweep: those to be added at every value of their knob; "all": all of `names` that have some.

    Raises:
        InputError: a method or setting is unknown, a value is not of its kind or out of range, or
            a method to sweep has no knob.
    """
    names = [name for name in names if name]
    if not names:
        raise InputError(f"--methods is empty; choose from {', '.join(METHODS)}")
    configs = dict(parse_method(name) for name in ["plain", *names])
    for name in sweep:
        swept = list(configs.values()) if name == ALL else [parse_method(name)[1]]
        for config in swept:
            if name != ALL:
                _check_sweep(name, config)
            # a value that is there under another name is not measured twice
            there = [known.resolved() for known in configs.values()]
            configs.update({n: c for n, c in _sweep(config).items() if c.resolved() not in there})
    return _grouped(configs)


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
    name = _name(method, given)
    values = {field: _parse(name, field, value) for field, value in given.items()}
    return name, _valid(name, SpecConfig(method=method), values)


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


def _valid(name: str, config: SpecConfig, values: dict[str, Any]) -> SpecConfig:
    """The configuration with some values set; what it refuses is said of `name`."""
    try:
        return replace(config, **values)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def _check_sweep(name: str, config: SpecConfig) -> None:
    """A method can be swept if it has a knob that is not set already."""
    knob = METHODS[config.method].knob
    if knob is None:
        able = ", ".join(f"{n} ({m.knob})" for n, m in METHODS.items() if m.knob is not None)
        raise InputError(f"{name} has no knob to sweep; these have: {able}")
    if knob in _differences(config):
        raise InputError(f"{name}: a sweep sets {knob} itself; leave it out")
    if not _values(config):
        raise InputError(
            f"{name}: a sweep has thresholds of the router's alone; name rows with a {knob} each"
        )


def _values(config: SpecConfig) -> tuple[float, ...]:
    """Of its knob, to draw its frontier; thresholds of one reward are none of another's."""
    method = METHODS[config.method]
    strange = method.knob == "tau" and config.reward != SpecConfig.reward
    return () if strange else method.sweep


def _sweep(config: SpecConfig) -> dict[str, SpecConfig]:
    """The configuration at every value of its knob, if it has some."""
    knob = METHODS[config.method].knob
    if knob is None:
        return {}
    found = {}
    for text in map(_text, _values(config)):
        name = _name(config.method, {**_differences(config, knob), knob: text})
        found[name] = _valid(name, config, {knob: _parse(name, knob, text)})
    return found


def _grouped(configs: dict[str, SpecConfig]) -> dict[str, SpecConfig]:
    """Methods, and families of a method, in the order of their first row; the knob within."""
    methods = list(dict.fromkeys(config.method for config in configs.values()))
    places = {name: place(config) for name, config in configs.items()}
    families = list(dict.fromkeys(found.family for found in places.values()))

    def rank(name: str) -> tuple[int, int, float]:
        config, found = configs[name], places[name]
        sweep = METHODS[config.method].sweep
        along = -1 if sweep and sweep[0] > sweep[-1] else 1
        at = along * (found.value or 0.0)
        return methods.index(config.method), families.index(found.family), at

    return {name: configs[name] for name in sorted(configs, key=rank)}


def _differences(config: SpecConfig, but: str | None = None) -> dict[str, str]:
    """The settings that are not the method's own, as they are written."""
    own = SpecConfig(method=config.method)
    changed = (f for f in SETTINGS if f != but and getattr(config, f) != getattr(own, f))
    return {field: _text(getattr(config, field)) for field in changed}


def _name(method: str, settings: dict[str, str]) -> str:
    inner = ",".join(f"{field}={text}" for field, text in settings.items())
    return f"{method}[{inner}]" if inner else method


def _text(value: Any) -> str:
    """A value as `_parse` reads it."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(_text, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)
