"""Options of a configuration's parts: which of them are read, and what they are."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InputError
from ..registry import either
from . import registry
from .cache_part import CACHE_KEEP, CACHE_SIZE
from .memory_budget import BUDGET
from .options import Option, options_of
from .part import Drafter, Head, Length, Part, Preset, Rule
from .parts.pipelines import Modality

if TYPE_CHECKING:
    from .config import SpecConfig

_KEPT = "share of a picture's tokens that the compressor leaves; none: it chooses itself"
KEEP = Option("keep", 0.5, _KEPT, float, optional=True, high=1, above=0)
KINDS = ("drafter", "rule", "length", "head")  # parts that have options
SLOTS = ("draft", "target")  # whose pictures or cache are compressed, whose weights are rounded
AMOUNTS = {"compressor": (KEEP,), "cache": (CACHE_KEEP, CACHE_SIZE)}  # of what is left, by kind


class Chosen(NamedTuple):
    """A part with its options."""

    part: Any
    options: Any


def choose(
    config: SpecConfig,
    preset: Preset,
    modality: Modality,
    parts: tuple[Drafter, Rule, Length, Head | None],
) -> tuple[tuple[Chosen, ...], dict[str, Any]]:
    """The parts with their options, the drafter first, and the options that are read.

    Raises:
        InputError: an option is set that no part reads.
    """
    drafter, rule, length, head = parts
    given = config.options
    defaults = preset.settings

    def value(declared: Option) -> Any:
        return given.get(declared.name, defaults.get(declared.name, declared.default))

    def filled(part: Part | Preset, kind: type) -> Chosen:
        return Chosen(part, kind(**{n: value(o) for n, o in options_of(kind).items()}))

    chosen = [filled(drafter, drafter.options)]
    for name in dict.fromkeys(getattr(chosen[0].options, "merge", ())):
        chosen.append(filled(beside := _among(name, "merges", "to merge"), beside.options))
    if (name := getattr(chosen[0].options, "inner", None)) is not None:
        what = "that drafts for another"
        chosen.append(filled(beside := _among(name, "nests", what), beside.options))
    chosen += [filled(rule, rule.options), filled(length, length.options)]
    if head is not None:
        chosen.append(filled(head, head.options))

    caches = [name for slot in SLOTS if (name := getattr(config, f"{slot}_cache")) is not None]
    for cache in map(registry.CACHES.get, dict.fromkeys(caches)):
        chosen.append(filled(cache, cache.options))

    read = [n for part, _ in chosen if part.kind == "cache" for n in options_of(part.options)]
    if drafter.drafts:  # what drafts nothing has nothing judged
        by_window = length.depth == "window" and drafter.window
        policy = not (drafter.tree or by_window or length.depth == "drafter")
        for part, options in chosen:
            out = set()
            if part is length and not rule.judges:  # all that there is stands at once
                continue
            if isinstance(part, Drafter) and (policy or not rule.judges):
                out = {part.depth}
            elif part is length and not policy:
                out = {"max_draft_tokens"}
            kind: Any = type(options)
            read += [name for name in options_of(kind) if name not in out]
    if modality in preset.options:
        chosen.append(filled(preset, preset.options[modality]))
        read += options_of(preset.options[modality])
    values = {f.name: getattr(o, f.name) for _, o in chosen for f in fields(o)}
    found = {name: values[name] for name in dict.fromkeys(read)}
    for slot in SLOTS:
        for kind_, amounts in AMOUNTS.items():
            if getattr(config, f"{slot}_{kind_}") is not None:
                names = {f"{slot}_{amount.name}": amount.default for amount in amounts}
                found |= {name: given.get(name, default) for name, default in names.items()}
    if rule.judges and drafter.drafts and drafter.tokens == "ids":
        found[BUDGET.name] = given.get(BUDGET.name, BUDGET.default)
    for name in given:
        if name not in found:
            own = ", ".join(sorted(found)) or "none"
            raise InputError(
                f"{name} is a setting of {either(readers(name))}, and method {config.method!r} "
                f"does not read it; leave it out (settings that it reads: {own})"
            )
    return tuple(chosen), found


def _among(name: str, able: str, what: str) -> Drafter:
    """The drafter of a name, an `InputError` unless it declares that it is `able`."""
    drafter = registry.DRAFTERS.get(name)
    if not getattr(drafter, able):
        known = [n for n, part in registry.parts("drafter").items() if getattr(part, able)]
        raise InputError(f"drafter {name!r} is none {what}; use {either(known)}")
    return drafter


def readers(name: str) -> list[str]:
    """The parts that have an option, by name."""
    for slot in SLOTS:
        for kind, amounts in AMOUNTS.items():
            if name in (f"{slot}_{amount.name}" for amount in amounts):
                return [f"{slot}_{kind}"]
    if name == BUDGET.name:
        return ["drafter"]
    declared = [part for kind in (*KINDS, "cache") for part in registry.parts(kind).values()]
    found = [part.name for part in declared if name in options_of(part.options)]
    for method in registry.presets().values():
        found += [method.name for kind in method.options.values() if name in options_of(kind)]
    return list(dict.fromkeys(found))
