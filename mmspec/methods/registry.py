"""Tables of parts and presets by name: the library's own, and those of other packages.

Another package adds its own by an entry point of the group `mmspec.parts` that names a part, a
preset, or a tuple of them: see `examples/own_parts`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from ..declarations import Declarations
from ..registry import check_name, is_reference
from .cache_part import CacheCompressor
from .part import Compressor, Drafter, Head, Length, Preset, Rule, Weights

_WHERE = ("mmspec.methods.parts",), "mmspec.parts"
DRAFTERS = Declarations(Drafter, "drafter", *_WHERE)
RULES = Declarations(Rule, "rule", *_WHERE)
LENGTHS = Declarations(Length, "length", *_WHERE)
HEADS = Declarations(Head, "head", *_WHERE)
COMPRESSORS = Declarations(Compressor, "compressor", *_WHERE)
CACHES = Declarations(CacheCompressor, "cache", *_WHERE)
WEIGHTS = Declarations(Weights, "weights", *_WHERE)
PRESETS = Declarations(Preset, "method", *_WHERE)
_TABLES: dict[str, Declarations[Any]] = {
    table.what: table for table in (DRAFTERS, RULES, LENGTHS, HEADS, COMPRESSORS, CACHES, WEIGHTS)
}
_ROLES = ("baseline", "method", "sceptic", "oracle")  # the order of lists


def parts(kind: str) -> Mapping[str, Any]:
    """The parts of a kind by name, such as "rule" or "drafter"."""
    return {part.name: part for part in _TABLES[kind].all()}


@lru_cache
def presets() -> Mapping[str, Preset]:
    """The methods by name."""
    ordered = sorted(PRESETS.all(), key=lambda preset: _ROLES.index(preset.role))
    return {preset.name: preset for preset in ordered}


def rule(name: str) -> Rule:
    """The acceptance rule called `name`; "module:Class" is one of the user's own.

    Raises:
        InputError: nothing has that name; the nearest one is suggested.
    """
    if not is_reference(str(name)):
        return RULES.get(name)
    made = "mmspec.pipelines.parts:own_rule"
    given = {"reference": lambda options, offers: name}
    return Rule(name, made, "your own", arguments=given, trees=True)


def preset(name: Any) -> Preset:
    """The method called `name`; errors as of `rule`."""
    check_name("method", name, presets())
    return presets()[name]
