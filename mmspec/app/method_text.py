"""Text about methods, their contracts and their knobs, in plain words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from ..engine.laws import Contract
from ..errors import InputError
from ..methods import PIPELINES, Modality, SpecConfig, parse_method, preset
from ..methods.config import all_options
from ..methods.options import Option
from ..methods.resolved import ResolvedConfig
from . import markup

CONTRACTS: dict[Contract, str] = {
    "exact": "Every result is as likely as from plain decoding. Both sides are drawn by chance, so "
    "one seed may still give two results.",
    "exact-greedy": "They are the very tokens that plain decoding picks.",
    "exact-rounded": "Exact for the model with its weights rounded, which is not quite the model "
    "itself.",
    "bounded": "Results are more or less likely than from plain decoding, but only as far as the "
    "knob allows.",
    "lossy": "What comes out may be worse than plain decoding's. Look at both, and at a report "
    "that measured many.",
}
# headings of groups of methods, in their order
HEADINGS: dict[Contract, str] = {
    "exact": "Speed, nothing lost (exact)",
    "exact-greedy": "Speed, the same tokens (exact)",
    "exact-rounded": "Speed, nothing lost but by rounding (exact)",
    "bounded": "Speed for as much change as you allow (bounded)",
    "lossy": "Speed for some quality (lossy)",
}
ALONE, WITH = ": the model alone", ": with a draft model or head"
COMPARED = "For comparison: what a method has to beat"
_GREEDY = " At temperature 0 they are the same."  # where the contract is exact, of token ids
NOTHING = "this model has no drafter: there is nothing to speculate with; choose another model"


def knob(method: str | None, modality: Modality) -> tuple[Option, Any] | None:
    """The one setting of a method that the page has a field for, and its value if nobody sets it.

    None: the method has none, or is none.
    """
    if method is None:
        return None
    config = SpecConfig(method).resolve(modality)
    name = config.preset.knob or config.drafter.knob
    return None if name is None else (all_options()[name], config.options[name])


def configured(method: str, modality: Modality, value: Any, more: str) -> tuple[str, SpecConfig]:
    """A method with its knob set and further settings, as `mmspec ls methods` and --method know it.

    A value of None is the method's own; `more` are settings such as `window=32,drafter=null`.
    """
    found, settings = knob(preset(method).name, modality), [more] if more else []
    if found is not None and value not in (None, found[1]):
        option = found[0]
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InputError(f"{option.name} must be a number, not {value!r}")
        whole = option.kind is int and value == int(value)
        settings.insert(0, f"{option.name}={int(value) if whole else value}")
    given = f"{method}[{','.join(settings)}]" if settings else method
    if ":" in given:  # who visits a page imports no code
        raise InputError(
            "this page takes no references to code, such as module:Class; use the command line or "
            "Python for parts of your own"
        )
    name, config = parse_method(given)
    config.resolve(modality)
    return name, config


def grouped(
    names: Sequence[str], modality: Modality, first: str | None
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Methods in groups, as a list offers them: headings that say what a visitor gains, and under
    each the names of its methods and what they do.

    The recommended one, `first`, stands in front. Groups come by what they promise, and those that
    need nothing but the model before others; what is there for comparison alone ends the list.
    """
    found = []
    for name in names:
        parts = SpecConfig(name).resolve(modality)
        promise, needy = list(HEADINGS).index(parts.contract), bool(parts.needs)
        heading, place = gain(parts) + (WITH if needy else ALONE), (promise, needy)
        if gain(parts) == COMPARED:
            heading, place = COMPARED, (len(HEADINGS), False)
        elif name == first:
            heading, place = f"Recommended. {heading}", (-1, False)
        found.append((place, heading, (name, parts.preset.summary)))
    found.sort(key=lambda row: row[0])
    groups = groupby(found, key=lambda row: row[1])
    return [(heading, [method for *_, method in rows]) for heading, rows in groups]


def gain(parts: ResolvedConfig) -> str:
    """Say what a visitor gains by a configuration, in a few words."""
    return COMPARED if parts.preset.role in ("sceptic", "oracle") else HEADINGS[parts.contract]


def about(config: SpecConfig | None, modality: Modality) -> str:
    """A configuration in a few sentences, as HTML; None: why a model has none."""
    if config is None:
        return f'<div class="mm-about"><p>{markup.escape(sentence(NOTHING))}</p></div>'
    parts = config.resolve(modality)
    summary, kind = parts.preset.summary, parts.contract
    of_ids = kind == "exact" and PIPELINES[modality].tokens == "ids"
    promise = CONTRACTS[kind] + (_GREEDY if of_ids else "")
    names = parts.parts
    made_of = f"Drafter {names['drafter']}, acceptance rule {names['rule']}, "
    made_of += f"length {names['length']}."
    if parts.head is not None:
        made_of = f"Draft head {names['head']}, acceptance rule {names['rule']}."
    gained = f"<b>{markup.escape(gain(parts))}.</b>"
    return (
        f'<div class="mm-about"><p>{gained} {markup.escape(promise)}</p>'
        f"<p>{markup.escape(sentence(summary))} <small>{markup.escape(made_of)}</small></p></div>"
    )


def unknown(words: list[str]) -> str:
    """Sentence about words that a model does not know; empty for none."""
    told = ", ".join(f"“{word}”" for word in words)
    return f"The model does not know {told}." if words else ""


def sentence(text: str) -> str:
    """Turn a summary line into a sentence."""
    return f"{text[0].upper()}{text[1:]}."
