"""Declarations of one kind, found where they are made: nobody keeps a list of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from operator import attrgetter
from pkgutil import iter_modules
from typing import Any, Generic, Protocol, TypeVar

from .errors import InputError, reason
from .registry import LEFT_OUT, check_name


class Declared(Protocol):
    """Object that a module declares at its top level, alone or in a tuple; users say its `name`."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Declared)


class Declarations(Generic[T]):
    """Table of all declarations of a kind, collected when they are first asked for.

    Another package that can't be loaded is left out with a warning, and whoever asks for a name
    that is missing is told so.

    Args:
        kind: class of the declarations.
        what: what a name stands for, as error messages call it.
        packages: whose modules are searched, which must therefore be quick to import; folders
            inside them are not.
        group: of the entry points by which other packages name theirs: one, or a tuple.
        key: what no two declarations share.
    """

    def __init__(
        self,
        kind: type[T],
        what: str,
        packages: tuple[str, ...],
        group: str,
        key: Callable[[T], Any] = attrgetter("name"),
    ) -> None:
        self.kind, self.what, self.key = kind, what, key
        self.packages, self.group = packages, group

    def all(self) -> tuple[T, ...]:
        """The declarations, in the order of their modules.

        Raises:
            InputError: two packages declare the same.
        """
        return collect(self)

    def names(self) -> list[str]:
        """List all names."""
        return [found.name for found in self.all()]

    def get(self, name: str) -> T:
        """The declaration of a name.

        Raises:
            InputError: nothing has that name; the nearest one is suggested.
        """
        check_name(self.what, name, self.names())
        return next(found for found in self.all() if found.name == name)


@lru_cache
def collect(table: Declarations[Any]) -> tuple[Any, ...]:
    """Collect the declarations for `Declarations.all`."""
    found: dict[Any, tuple[str, Any]] = {}
    for package, one in (*_own(table.packages), *_of_others(table.group)):
        if isinstance(one, table.kind):
            first, known = found.setdefault(table.key(one), (package, one))
            if known is not one:
                raise InputError(
                    f"two packages declare {table.what} {one.name!r}: {first} and {package}; "
                    "uninstall one of them"
                )
    return tuple(one for _, one in found.values())


def _own(packages: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for package in packages:
        for module in iter_modules(import_module(package).__path__):
            for value in vars(import_module(f"{package}.{module.name}")).values():
                yield from (("mmspec", one) for one in _several(value))


@lru_cache
def _of_others(group: str) -> list[tuple[str, Any]]:
    """Packages and what they declare."""
    found: list[tuple[str, Any]] = []
    for point in entry_points(group=group):
        package = point.dist.name if point.dist else point.module
        try:
            declared = _several(point.load())
            if not all(isinstance(getattr(one, "name", None), str) for one in declared):
                raise TypeError(f"{point.value} is no declaration, or tuple of them")
        except Exception as error:  # whatever another package may raise
            LEFT_OUT[package] = f"package {package} is left out: {reason(error)}"
            warnings.warn(LEFT_OUT[package], stacklevel=2)
        else:
            found += [(package, one) for one in declared]
    return found


def _several(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list | tuple) else (value,)
