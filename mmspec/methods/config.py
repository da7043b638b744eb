"""User's configuration: a method, with parts and options of its own."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..registry import check_name, is_reference
from . import registry
from .chosen import AMOUNTS, KINDS, SLOTS
from .memory_budget import BUDGET, BytesOption
from .options import Option, options_of
from .parts.pipelines import MODALITIES, PIPELINES
from .resolved import ResolvedConfig, resolve

if TYPE_CHECKING:
    from .parts.pipelines import Modality

PARTS = (
    "drafter",
    "rule",
    "length",
    "head",
    "draft_compressor",
    "target_compressor",
    "draft_cache",
    "target_cache",
    "draft_weights",
    "target_weights",
)
_RENAMED = {"wished_speedup": "target_speedup", "wished_quality": "target_quality"}  # since 0.1


class SpecConfig:
    """Configuration of speculation: the name of a method, and what is to differ from it.

    Args:
        method: preset of drafter, rule and length policy; `mmspec ls methods` tells of each.
        drafter, rule, length: parts by name, in place of the preset's. A rule of your own for
            tokens is "module:Class", a class that takes no arguments.
        head: draft head in place of a draft model, by name.
        draft_compressor: shortens the pictures that a draft model is shown, see `mmspec.compress`.
            The output stays exact.
        target_compressor: the same for the target: lossy, whatever the rule.
        draft_cache: chooses which of a prompt's keys and values stay in a draft model's cache, such
            as "speckv". The output stays exact.
        target_cache: the same for the target's cache: lossy, whatever the rule.
        draft_weights: how weights of what drafts, a draft model or a copy of the target, are
            rounded, on a processor: "float16" or "int8". The output stays exact.
        target_weights: the same for the target: exact is then exact for the rounded target.
        options: of these parts, such as `window=32`: `mmspec ls options` tells of each, and of its
            range. `draft_keep` and `target_keep` are the share of a picture's tokens that a
            compressor leaves; None: it chooses itself, which "prumerge" can. `draft_cache_keep`
            and `target_cache_keep` are the share of a prompt's entries that stay in a cache, and
            `draft_cache_size` and `target_cache_size` the most of them. `memory_budget`, such as
            "64MB", is the memory that drafting may add; drafts get smaller until they fit.

    Attributes:
        options: those that are given, by name.

    Raises:
        InputError: a name is unknown, a value out of range, parts do not go together, or an option
            is set that none of them reads.
    """

    __slots__ = (*PARTS, "_hash", "method", "options")
    method: str
    drafter: str | None
    rule: str | None
    length: str | None
    head: str | None
    draft_compressor: str | None
    target_compressor: str | None
    draft_cache: str | None
    target_cache: str | None
    draft_weights: str | None
    target_weights: str | None
    options: Mapping[str, Any]
    _hash: int

    def __init__(
        self,
        method: str = "draft",
        drafter: str | None = None,
        rule: str | None = None,
        length: str | None = None,
        head: str | None = None,
        draft_compressor: str | None = None,
        target_compressor: str | None = None,
        draft_cache: str | None = None,
        target_cache: str | None = None,
        draft_weights: str | None = None,
        target_weights: str | None = None,
        **options: Any,
    ) -> None:
        registry.preset(method)
        parts = (drafter, rule, length, head, draft_compressor, target_compressor)
        given = (*parts, draft_cache, target_cache, draft_weights, target_weights)
        for name, value in zip(PARTS, given, strict=True):
            kind = name.split("_")[-1]
            if value is not None and not (kind == "rule" and is_reference(str(value))):
                check_name(name, value, registry.parts(kind))
            object.__setattr__(self, name, value)
        for name in options:
            if name in _RENAMED:
                raise InputError(f"{name} is called {_RENAMED[name]} since version 0.2")
            check_name("setting", name, all_options())
        known = all_options()
        checked = {name: known[name].check(value) for name, value in options.items()}
        object.__setattr__(self, "method", method)
        object.__setattr__(self, "options", MappingProxyType(checked))
        object.__setattr__(self, "_hash", hash(self._key))
        self.resolve()

    @property
    def _key(self) -> tuple[Any, ...]:
        parts = tuple(getattr(self, name) for name in PARTS)
        return self.method, parts, tuple(sorted(self.options.items()))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"a SpecConfig can't be changed; make another with replace({name}=…)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpecConfig) and self._key == other._key

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        said = [repr(self.method)]
        said += [f"{name}={value!r}" for name, value in self.to_dict().items() if name != "method"]
        return f"SpecConfig({', '.join(said)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return SpecConfig.from_dict, (self.to_dict(),)

    def replace(self, **changes: Any) -> SpecConfig:
        """Make one with other parts or options; an option that can't be None goes back to its own.

        Raises:
            InputError: as of `SpecConfig`.
        """
        return SpecConfig(**(self.to_dict() | changes))

    def to_dict(self) -> dict[str, Any]:
        """Convert to a dictionary as JSON has it and `from_dict` reads it."""
        parts = {n: getattr(self, n) for n in PARTS if getattr(self, n) is not None}
        return {"method": self.method, **parts, **self.options}

    @staticmethod
    def from_dict(saved: Mapping[str, Any]) -> SpecConfig:
        """Make the configuration that `to_dict` gave.

        A configuration that version 0.1 saved has every option, most of them None or at their
        defaults; those that its method does not read are left out.

        Raises:
            InputError: it is none, or asks for what there is no more.
        """
        told: Any = saved
        if not isinstance(told, Mapping) or not isinstance(told.get("method"), str):
            raise InputError("this is no saved SpecConfig: it names no method")
        if "stride" not in saved:
            return SpecConfig(**saved)
        wanted = {_RENAMED.get(name, name): value for name, value in saved.items()}
        del wanted["stride"]
        given = {name: wanted.pop(name, None) for name in ("method", *PARTS)}
        known = all_options()
        for name, value in wanted.items():
            check_name("setting", name, known)
            default = known[name].default
            value = tuple(value) if isinstance(value, list) else value
            if value is not None and value != default:
                given[name] = value
        return SpecConfig(**given)

    def resolve(self, modality: Modality | None = None) -> ResolvedConfig:
        """Resolve it for a modality; None: for the first that it serves.

        Raises:
            InputError: the method does not serve it, or its parts do not go together there.
        """
        faults = []
        for one in self._serves if modality is None else (modality,):
            try:
                return resolve(self, one)
            except InputError as error:
                faults.append(error)
        raise faults[0]

    @property
    def _serves(self) -> Sequence[Modality]:
        """Modalities of the method whose prompts its compressors shorten; else all of its own."""
        slots = [(kind, getattr(self, f"{slot}_{kind}")) for kind in AMOUNTS for slot in SLOTS]
        named = [registry.parts(kind)[name] for kind, name in slots if name is not None]
        own = registry.preset(self.method).serves
        return [one for one in own if all(one in part.serves for part in named)] or own

    @classmethod
    def schema(cls) -> dict[str, Any]:
        """JSON schema of a saved configuration."""
        kinds = {int: "integer", float: "number", bool: "boolean", str: "string"}
        found: dict[str, Any] = {"method": {"enum": list(registry.presets())}}
        for name in PARTS:
            found[name] = {"type": ["string", "null"]}
        for name, declared in all_options().items():
            one: dict[str, Any] = {"type": kinds[declared.kind]}
            bounds = dict(minimum=declared.low, maximum=declared.high)
            bounds["exclusiveMinimum"] = declared.above
            one |= {key: bound for key, bound in bounds.items() if bound is not None}
            if declared.choices:
                one["enum"] = list(declared.choices)
            if declared.many:
                one = {"type": "array", "items": one}
            if isinstance(declared, BytesOption):
                one = {"anyOf": [one, {"type": "string"}]}
            if declared.optional:
                one = {"anyOf": [one, {"type": "null"}]}
            found[name] = one | {"description": declared.help}
        return {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": "SpecConfig",
            "type": "object",
            "properties": found,
            "required": ["method"],
            "additionalProperties": False,
        }


@lru_cache(maxsize=1)
def all_options() -> dict[str, Option]:
    """Options that some part or method reads, by name."""
    found: dict[str, Option] = {}
    for modality in MODALITIES:
        found |= options_of_modality(modality)
    return found


@lru_cache
def options_of_modality(modality: Modality) -> dict[str, Option]:
    """The options of the parts and methods that work for a modality, by name."""
    tokens = PIPELINES[modality].tokens
    declared = [
        part.options
        for kind in (*KINDS, "cache")
        for part in registry.parts(kind).values()
        if tokens in getattr(part, "tokens", tokens)
        and modality in getattr(part, "serves", (modality,))
    ]
    made = registry.presets().values()
    declared += [preset.options[modality] for preset in made if modality in preset.options]
    found: dict[str, Option] = {}
    for options in declared:
        found |= options_of(options)
    if tokens == "ids":
        found[BUDGET.name] = BUDGET
    for kind, amounts in AMOUNTS.items():
        if any(modality in part.serves for part in registry.parts(kind).values()):
            for name, one in ((f"{s}_{one.name}", one) for s in SLOTS for one in amounts):
                found[name] = dataclasses.replace(one, name=name)
    return found
