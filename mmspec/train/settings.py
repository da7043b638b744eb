"""Settings of what a recipe trains: text of the user's, read as what each usually is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import InputError
from ..registry import check_name


class Bounded(NamedTuple):
    """A number above 0.

    Attributes:
        usual: unless it is given.
        most: that it may be.
    """

    usual: float
    most: float


Known = Mapping[str, str | int | float | Bounded]
"""Settings by name: what each is unless it is given.

Those that are whole numbers then can be nothing else, and are not below 0.
"""


def settings_of(given: Mapping[str, str], known: Known, what: str) -> dict[str, Any]:
    """Values of all settings that are `known`, of the types that they usually have.

    Args:
        given: some of them, as text.
        known: all that there are.
        what: they are of.

    Raises:
        InputError: one is unknown, of another type or out of range.
    """
    usual = {name: of.usual if isinstance(of, Bounded) else of for name, of in known.items()}
    settings: dict[str, Any] = dict(usual)
    for name, text in given.items():
        check_name(f"setting of {what}", name, known)
        own, bounds = usual[name], known[name]
        whole = isinstance(own, int)
        try:
            if whole and not text.isdecimal():
                raise ValueError
            value: Any = type(own)(text)
        except ValueError as error:
            kind = "whole number" if whole else "number"
            raise InputError(f"{name} of {what} is a {kind}, not {text!r}") from error
        if isinstance(bounds, Bounded) and not 0 < value <= bounds.most:
            most = f"{bounds.most:g}"
            raise InputError(f"{name} of {what} is above 0 and at most {most}, not {text}")
        settings[name] = value
    return settings
