"""What methods, their contracts and their knobs are, in plain words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..config import REAL, WHOLE, SpecConfig
from ..engine.laws import Contract
from ..errors import InputError
from ..methods import METHODS, OF_IDS, WINDOWED, Modality
from ..named import parse_method
from ..pipelines.contracts import contract
from ..registry import check_name
from . import markup

CONTRACTS: dict[Contract, str] = {
    "exact": "Exact: every result is as likely as from plain decoding. Both sides are drawn by "
    "chance, so one seed may still give two results.",
    "exact-greedy": "Exact: the very tokens that plain decoding picks.",
    "bounded": "Bounded: results are more or less likely than from plain decoding, but only as far "
    "as the knob allows.",
    "lossy": "Lossy: what comes out may be worse than plain decoding's. Look at both, and at a "
    "report that measured many.",
}
_GREEDY = " At temperature 0 they are the same."  # where the contract is exact, of token ids
KNOBS = {
    "num_draft_tokens": "how many are drafted before the target checks",
    "window": "positions that are drafted at a time",
    "tree_depth": "how far ahead the tree of drafts goes",
    "tree_nodes": "drafts in the tree",
    "lantern_delta": "probability that like tokens may lend; more is faster and further off",
    "lantern_lambda": "how often a token counts for its own probability; more is faster",
    "group_size": "tokens that are judged as one; more is faster and further off",
    "cool_delta": "how far the test is relaxed; more is faster and further off",
    "local_threshold": "probability that a drafted token must reach; less is faster",
    "neighbours": "like tokens that count together; more is faster and further off",
    "zipar_window": "tokens that a row waits for the one above; fewer is faster",
    "softening": "how much the test is softened; more is faster and further off",
    "tau": "what a drafted block's worst frame must score to stand; less is faster",
    "draft_share": "part of the drafted blocks that is to stand; more is faster",
}
# of methods without a knob of their own, by drafter: how far they draft
_REACH = {
    **dict.fromkeys(("model", "block", "early-exit", "layer-skip", "lookup"), "num_draft_tokens"),
    **dict.fromkeys(("dynamic-tree", "eagle"), "tree_depth"),
    **dict.fromkeys(WINDOWED, "window"),
    "merged": "tree_nodes",
}


NOTHING = "this model has no drafter: there is nothing to speculate with; choose another model"


@dataclass(frozen=True)
class Knob:
    """The one setting of a method that the page has a field for.

    Attributes:
        name: a field of `SpecConfig`.
        value: what it is if nobody sets it.
    """

    name: str
    value: float

    @property
    def label(self) -> str:
        """What it is, and from where to where."""
        low, high = (WHOLE | REAL)[self.name]
        span = f", {low:g} to {high:g}" if abs(low) < 1e9 and abs(high) < 1e9 else ""
        return f"{self.name}: {KNOBS[self.name]}{span}"

    def text(self, value: Any) -> str:
        """A value as a setting of the method; None: the method's own.

        Raises:
            InputError: it is no number.
        """
        if value is None:
            return ""
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value):
            raise InputError(f"{self.name} must be a number, not {value!r}")
        whole = self.name in WHOLE and value == int(value)
        return f"{self.name}={int(value) if whole else value}"


def knob(method: str | None, modality: Modality) -> Knob | None:
    """The knob of a method; None: it has none that the page would have a field for, or is none."""
    if method is None:
        return None
    parts = SpecConfig(method).resolved(modality=modality)
    name = METHODS[method].of(modality).knob or _REACH.get(str(parts.drafter))
    return None if name is None else Knob(name, getattr(parts, name))


def configured(method: str, modality: Modality, value: Any, more: str) -> tuple[str, SpecConfig]:
    """A method with its knob set and further settings, as `mmspec ls methods` and --method know it.

    Args:
        value: of the knob; None: the method's own.
        more: settings such as `window=32,drafter=coupled-jacobi`.

    Raises:
        InputError: a setting is unknown, out of range or a reference to code, or the method is not
            for the modality.
    """
    check_name("method", method, METHODS)
    found = knob(method, modality)
    own = found is None or value == found.value
    settings = [] if own or found is None else [found.text(value)]
    settings += [more] if more else []
    given = f"{method}[{','.join(s for s in settings if s)}]" if any(settings) else method
    if ":" in given:  # who visits a page imports no code
        raise InputError(
            "this page takes no references to code, such as module:Class; use the command line or "
            "Python for parts of your own"
        )
    name, config = parse_method(given)
    config.serving(modality)
    return name, config


def about(config: SpecConfig | None, modality: Modality) -> str:
    """A configuration in a few sentences, as HTML; None: why a model has none."""
    if config is None:
        return f'<div class="mm-about"><p>{markup.escape(sentence(NOTHING))}</p></div>'
    summary = METHODS[config.method].of(modality).summary
    kind = contract(config, modality)
    promise = CONTRACTS[kind] + (_GREEDY if kind == "exact" and modality in OF_IDS else "")
    parts = config.serving(modality)
    made_of = f"Drafter {parts.drafter}, acceptance rule {parts.rule}, length {parts.length}."
    if parts.head is not None:
        made_of = f"Draft head {parts.head}, acceptance rule {parts.rule}."
    return (
        f'<div class="mm-about"><p>{markup.escape(sentence(summary))}</p>'
        f"<p>{markup.escape(promise)}</p><p><small>{markup.escape(made_of)}</small></p></div>"
    )


def unknown(words: list[str]) -> str:
    """That a model does not know some words, in a sentence; nothing of none."""
    told = ", ".join(f"“{word}”" for word in words)
    return f"The model does not know {told}." if words else ""


def sentence(text: str) -> str:
    """What is said in one line elsewhere, as a sentence."""
    return f"{text[0].upper()}{text[1:]}."
