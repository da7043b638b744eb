"""Declarations of one kind, found where they are made: nobody keeps a list of them."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Generic, Protocol, TypeVar

from .errors import InputError, reason
from .registry import check_name


class Declared(Protocol):
    """What a module declares at its top level.

    Attributes:
        name: what users call it.
    """

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Declared)


class Declarations(Generic[T]):
    """All declarations of a kind, collected when they are first asked for.

    They are instances of `kind` at the top level of a package's modules, whose import must
    therefore be quick, and whatever entry points of other packages name: one or several.

    Args:
        kind: class of the declarations.
        what: what a name stands for, as error messages call it.
        packages: whose modules are searched; folders inside them are not.
        group: of the entry points.
    """

    def __init__(self, kind: type[T], what: str, packages: tuple[str, ...], group: str) -> None:
        self.what, self._kind, self._packages, self._group = what, kind, packages, group
        self._found: list[T] | None = None

    def all(self) -> tuple[T, ...]:
        """The declarations, in the order of their modules."""
        if self._found is None:
            self._found = []
            for found in (*self._own(), *self._foreign()):
                self.register(found)
        return tuple(self._found)

    def register(self, found: T) -> None:
        """Add a declaration; one that is there already stays as it is."""
        known = self.all()
        if all(found is not other for other in known):
            assert self._found is not None
            self._found.append(found)

    def remove(self, found: T) -> None:
        """Take a declaration out again."""
        self.all()
        assert self._found is not None
        self._found.remove(found)

    def names(self) -> list[str]:
        """All names."""
        return [found.name for found in self.all()]

    def get(self, name: str) -> T:
        """The declaration of a name.

        Raises:
            InputError: nothing has that name; the nearest one is suggested.
        """
        check_name(self.what, name, self.names())
        return next(found for found in self.all() if found.name == name)

    def _own(self) -> Iterator[T]:
        for package in self._packages:
            for module in pkgutil.iter_modules(import_module(package).__path__):
                yield from self._in(vars(import_module(f"{package}.{module.name}")).values())

    def _foreign(self) -> Iterator[T]:
        for point in entry_points(group=self._group):
            try:
                found = point.load()
            except Exception as error:  # another package's import raises what it raises
                raise InputError(
                    f"can't load {point.value} of entry point {self._group}: {reason(error)}"
                ) from error
            yield from self._in(found if isinstance(found, list | tuple) else (found,))

    def _in(self, values: Any) -> Iterator[T]:
        return (value for value in values if isinstance(value, self._kind))
