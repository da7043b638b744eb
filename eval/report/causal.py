"""Trials of transformers' causal models: speculation with a tiny one of each class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import transformers

from ...errors import InputError
from ...models.transformers.probe import probed
from ...models.transformers.prompted import PromptedDecoder
from ...models.transformers.tiny import model_classes, tiny
from .table import escape


@dataclass(frozen=True)
class Trial:
    """Outcome of one class.

    Attributes:
        kind: its model type.
        name: of the class.
        taken: whether it can speculate; None: no tiny model of it can be built.
        note: what is special about it, or why it is refused.
    """

    kind: str
    name: str
    taken: bool | None
    note: str = ""


def trials(kinds: Sequence[str] = ()) -> Iterator[Trial]:
    """Try a tiny random model of each model type; none given: all that transformers has.

    Raises:
        InputError: transformers has no causal class of a type.
    """
    known = model_classes()
    for kind in kinds or sorted(known):
        if kind not in known:
            raise InputError(f"transformers {transformers.__version__} has no causal {kind!r}")
        name = known[kind]
        try:
            model = tiny(kind)
        except Exception:  # whatever a config's own checks raise
            yield Trial(kind, name, None)
            continue
        try:
            decoder = probed(model)
        except InputError as error:
            why = str(error).partition(": ")[2] or str(error)
            first, more, _ = why.partition(". ")  # a library's error may go on: "(… Please call …)"
            yield Trial(kind, name, False, f"{first})" if more else why)
        else:
            yield Trial(kind, name, True, ", ".join(_notes(decoder)))


def _notes(decoder: PromptedDecoder) -> Iterator[str]:
    """Names what a model has beside attention to all of the text."""
    if decoder.masks.window is not None:
        yield "sliding windows"
    if decoder.alibi.layers:
        yield "positions by ALiBi"
    if decoder.recurrent.modules:
        yield "a state, a token at a time" if decoder.recurrent.stepwise else "a state"


def causal(kinds: Sequence[str] = ()) -> str:
    """The trials in Markdown: what is taken, what is refused and why, what was not tried."""
    found = list(trials(kinds))
    taken = [one for one in found if one.taken]
    refused = [one for one in found if one.taken is False]
    untried = [f"`{one.kind}`" for one in found if one.taken is None]
    counts = f"{len(taken)} model types are taken, {len(refused)} are refused"
    parts = [f"With transformers {transformers.__version__}: {counts}."]
    for title, note, rows in (("Taken", "", taken), ("Refused", "why", refused)):
        if rows:
            lines = [f"| model type | class | {note} |", "|---|---|---|"]
            lines += [f"| {one.kind} | {one.name} | {escape(one.note)} |" for one in rows]
            parts += [f"## {title}", "\n".join(lines)]
    if untried:
        parts += [f"Not tried, since no tiny model of them builds here: {', '.join(untried)}."]
    return "\n\n".join(parts) + "\n"
