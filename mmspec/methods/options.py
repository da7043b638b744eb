"""Options of parts: each part has a frozen dataclass of its own, whose fields `option` declares.

An option says its type, default, range and a line of help once; the command line, the demo, the
JSON schema and error messages are derived from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import lru_cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import InputError
from ..registry import check_name

Limit = Literal["depth", "width", "nodes"]
_TYPED = {int: "an integer", float: "a number", bool: "true or false", str: "a name"}


def option(
    default: Any,
    help: str,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    limits: tuple[Limit, ...] = (),
) -> Any:
    """Declare an option: a field of a frozen dataclass.

    Args:
        default: what it is unless somebody sets it.
        help: what it is, in one line.
        low, high: the least and the greatest value.
        above: values must be greater than this.
        limits: what of a draft it limits: levels, children of a node, or all nodes.
    """
    said = dict(help=help, low=low, high=high, above=above, limits=limits)
    return field(default=default, metadata=said)


@dataclass(frozen=True)
class Option:
    """An option as it is declared.

    Attributes:
        name, default, help: of the field.
        kind: the type of a value: int, float, bool or str.
        optional: it may be None.
        many: it is a tuple of values.
        choices: the names that a value may be; none: any.
        low, high, above: the range of a value; None: unbounded.
        limits: what of a draft it limits.
    """

    name: str
    default: Any
    help: str
    kind: type
    optional: bool = False
    many: bool = False
    choices: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    above: float | None = None
    limits: tuple[Limit, ...] = ()

    @classmethod
    def of(cls, declared: Field[Any], hint: Any) -> Option:
        """The option that a dataclass's field declares, of a type hint."""
        optional = get_origin(hint) in (Union, UnionType)
        if optional:
            (hint,) = (part for part in get_args(hint) if part is not NoneType)
        many = get_origin(hint) is tuple
        if many:
            hint = get_args(hint)[0]
        choices = tuple(get_args(hint)) if get_origin(hint) is Literal else ()
        default = declared.default
        assert default is not MISSING
        kind = str if choices else hint
        about = dict(declared.metadata)
        return cls(
            declared.name, default, about.pop("help"), kind, optional, many, choices, **about
        )

    def cut(self, value: Any, most: Mapping[Limit, int]) -> Any:
        """The value of a draft that goes no further than `most` says, of several one a level."""
        for limit in self.limits:
            if not self.many:
                value = min(value, most[limit])
            elif limit == "depth":
                value = value[: most[limit]]
            else:
                value = tuple(min(one, most[limit]) for one in value)
        return value

    @property
    def range(self) -> str:
        """Range of the values; empty for names and for what is unbounded."""
        if self.above is not None:
            most = "" if self.high is None else f" and at most {self.high:g}"
            return f"above {self.above:g}{most}"
        if self.high is None:
            return "" if self.low is None else f"of {self.low:g} or more"
        return f"from {-math.inf if self.low is None else self.low:g} to {self.high:g}"

    @property
    def letter(self) -> str:
        """Letter that stands for a value where it is asked for."""
        if self.kind is bool:
            return "true|false"
        return {int: "N", float: "X"}.get(self.kind, "NAME") + (",…" if self.many else "")

    def parse(self, text: str) -> Any:
        """The value that a text stands for, such as "3", "3,2,1", "true" or "none".

        Raises:
            ValueError: it stands for no such value.
        """
        if self.optional and text == "none":
            return None
        values = tuple(self._read(part) for part in (text.split(",") if self.many else [text]))
        return values if self.many else values[0]

    @property
    def wanted(self) -> str:
        """Description of the values that `parse` takes."""
        several = ", or several with commas between" if self.many else ""
        return f"{_TYPED[self.kind]}{several}{', or none' if self.optional else ''}"

    def _read(self, text: str) -> Any:
        if self.kind is bool:
            if text not in ("true", "false"):
                raise ValueError(text)
            return text == "true"
        value = self.kind(text)
        if not text or (self.kind is float and not math.isfinite(value)):
            raise ValueError(text)
        return value

    def check(self, value: Any) -> Any:
        """The value, a list as a tuple.

        Raises:
            InputError: it is of another type, out of range, or an unknown name.
        """
        if value is None and self.optional:
            return None
        if not self.many:
            self._check(value)
            return value
        if not isinstance(value, list | tuple):
            raise InputError(f"{self.name} must be a tuple, not {value!r}")
        if not value and self.kind in (int, float):
            raise InputError(f"{self.name} must be {self._said}, not {value!r}")
        for one in value:
            self._check(one)
        return tuple(value)

    @property
    def _said(self) -> str:
        """Describe the values that are allowed."""
        if self.kind is bool:
            return "True, False or None" if self.optional else "True or False"
        kind = {int: "integers" if self.many else "an integer", float: ""}.get(self.kind, "a name")
        return f"{kind} {self.range}".strip() or "a number"

    def _check(self, value: Any) -> None:
        if self.choices:
            check_name(self.name, value, self.choices)
        elif self.kind in (int, float):
            number = Integral if self.kind is int else Real
            given: Any = value
            fits = isinstance(given, number) and not isinstance(given, bool)
            fits = fits and not math.isnan(value)
            fits = fits and (self.low is None or value >= self.low)
            fits = fits and (self.high is None or value <= self.high)
            fits = fits and (self.above is None or value > self.above)
            if not fits:
                raise InputError(f"{self.name} must be {self._said}, not {value!r}")
        elif not isinstance(value, self.kind):
            raise InputError(f"{self.name} must be {self._said}, not {value!r}")


@dataclass(frozen=True)
class Options:
    """Base of a part's options: a subclass is a frozen dataclass. Itself: a part that has none."""

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True)(cls)

    def needs(self) -> tuple[str, ...]:
        """Components of the pipeline that a part needs by these options, beside its own `needs`."""
        return ()

    def approximates(self) -> bool:
        """True if by these options what answers is not the target as it is."""
        return False

    def check_layers(self, layers: int) -> None:
        """Raise an `InputError` if a target of so many layers won't do."""
        return


@lru_cache
def options_of(declaration: type) -> Mapping[str, Option]:
    """The options that a dataclass declares, by name."""
    hints = get_type_hints(declaration)
    return {f.name: Option.of(f, hints[f.name]) for f in fields(declaration)}


def text_of(value: Any) -> str:
    """A value as `Option.parse` reads it."""
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(text_of, value))
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    return str(value)
