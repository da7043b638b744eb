"""Names that stand for objects, imported only when they are used."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from importlib import import_module
from typing import Any

from .errors import InputError


def resolve(reference: str) -> Any:
    """The object that `"module:Object"` names."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def is_reference(name: str) -> bool:
    """Test whether a name is a user's own `"module:Object"`."""
    module, _, found = name.partition(":")
    return bool(module and found)


def resolve_own(kind: str, reference: str) -> Any:
    """The object that a user's `"module:Object"` names.

    Raises:
        InputError: it can't be imported.
    """
    try:
        return resolve(reference)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise InputError(
            f"can't import {kind} {reference!r}: {error}; its module must be installed, or in a "
            "folder of PYTHONPATH"
        ) from error


LEFT_OUT: dict[str, str] = {}  # by package that can't be loaded: a line that says why


def check_name(kind: str, name: str, known: Iterable[str]) -> None:
    """Raise an `InputError` that suggests the nearest name if `name` is not known.

    It also tells of packages that are left out, for the name may be one of theirs.
    """
    names = list(known)
    if name not in names:
        # of the standard library: a dozen names take no time, and the base install needs no more
        near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        said = f"unknown {kind} {name!r}{hint} (known: {', '.join(names)})"
        raise InputError("; ".join([said, *LEFT_OUT.values()]))


def either(names: Iterable[str]) -> str:
    """Names as a choice in a sentence."""
    return " or ".join(map(repr, names))


class Registry:
    """Names of one kind, each with a lazy reference.

    Args:
        kind: what the names stand for, as error messages call it.
        entries: `"module:Object"` by name.
    """

    def __init__(self, kind: str, entries: Mapping[str, str]) -> None:
        self.kind, self._entries = kind, dict(entries)

    def names(self) -> list[str]:
        """List all names, in the order in which they were given."""
        return list(self._entries)

    def get(self, name: str) -> Any:
        """The object called `name`, imported now.

        Raises:
            InputError: nothing has that name; the nearest one is suggested.
        """
        check_name(self.kind, name, self._entries)
        return resolve(self._entries[name])
