"""All parts and presets by name: the library's own, and those of other packages.

Another package adds its own by an entry point of the group `mmspec.parts` that names a part, a
preset, or a tuple of them: see `examples/own_rule`.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from functools import lru_cache
from importlib import import_module
from importlib.metadata import entry_points
from pkgutil import iter_modules
from typing import Any

from ..errors import InputError, reason
from ..registry import check_name, is_reference
from . import parts as declarations
from .part import Drafter, Head, Length, Part, Preset, Rule

GROUP = "mmspec.parts"
_ROLES = ("baseline", "method", "sceptic")  # the order of lists


def _own() -> Iterator[Part | Preset]:
    """What every module of the folder `parts` declares."""
    for found in iter_modules(declarations.__path__):
        module = import_module(f"{declarations.__name__}.{found.name}")
        yield from getattr(module, "PARTS", ())


@lru_cache(maxsize=1)
def _known() -> tuple[dict[str, dict[str, Any]], dict[str, Preset]]:
    parts: dict[str, dict[str, Any]] = {}
    presets: dict[str, Preset] = {}
    for declared in (*_own(), *_of_others()):
        table: dict[str, Any] = presets
        if isinstance(declared, Part):
            table = parts.setdefault(declared.kind, {})
        if declared.name in table:
            raise InputError(
                f"two packages declare {declared.kind} {declared.name!r}; uninstall one of them"
            )
        table[declared.name] = declared
    ordered = sorted(presets.items(), key=lambda named: _ROLES.index(named[1].role))
    return parts, dict(ordered)


def _of_others() -> Iterator[Part | Preset]:
    """What other packages declare; one that can't be loaded is left out, with a warning."""
    for point in entry_points(group=GROUP):
        try:
            loaded = point.load()
            several = loaded if isinstance(loaded, list | tuple) else (loaded,)
            if not all(isinstance(one, Part | Preset) for one in several):
                raise TypeError("it is no part, preset, or tuple of them")
        except Exception as error:  # whatever another package may raise
            warnings.warn(f"parts of {point.value} are left out: {reason(error)}", stacklevel=2)
            continue
        yield from several


def parts(kind: str) -> Mapping[str, Any]:
    """The parts of a kind by name: "rule", "drafter", "length", "head" or "compressor"."""
    return _known()[0][kind]


def presets() -> Mapping[str, Preset]:
    """The methods by name."""
    return _known()[1]


def _part(kind: str, name: Any) -> Any:
    check_name(kind, name, parts(kind))
    return parts(kind)[name]


def drafter(name: str) -> Drafter:
    """The drafter called `name`.

    Raises:
        InputError: nothing has that name; the nearest one is suggested. So for all parts.
    """
    found: Drafter = _part("drafter", name)
    return found


def rule(name: str) -> Rule:
    """The acceptance rule called `name`; "module:Class" is one of the user's own."""
    if is_reference(str(name)):
        made = "mmspec.pipelines.parts:own_rule"
        given = {"reference": lambda options, offers: name}
        return Rule(name, made, "your own", arguments=given, trees=True)
    found: Rule = _part("rule", name)
    return found


def length(name: str) -> Length:
    """The draft-length policy called `name`."""
    found: Length = _part("length", name)
    return found


def head(name: str) -> Head:
    """The draft head called `name`."""
    found: Head = _part("head", name)
    return found


def preset(name: Any) -> Preset:
    """The method called `name`."""
    check_name("method", name, presets())
    return presets()[name]
