"""Warnings of words that a model does not read: those beyond its tokens, and unknown ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from textwrap import shorten
from typing import Any

logger = logging.getLogger(__name__)
Line = Callable[[Mapping[str, str]], str]


@dataclass
class _Kind:
    line: Line
    found: dict[str, str] = field(default_factory=dict)
    told: int = 0


_gathered: dict[str, _Kind] | None = None


@contextmanager
def gathered() -> Iterator[None]:
    """Gather warnings: each kind is shown when it first comes, and in all at the end."""
    global _gathered
    outer, _gathered = _gathered, {}
    try:
        yield
    finally:
        kinds, _gathered = _gathered, outer
        for kind in kinds.values():
            if len(kind.found) > kind.told:
                logger.warning("in all: %s", kind.line(kind.found))


def tell(subject: str, found: Mapping[str, str], line: Line) -> None:
    """Warn of what was found, if anything.

    Args:
        subject: what belongs together where warnings are `gathered`.
        found: by what makes one differ from another.
        line: puts it into words.
    """
    if not found:
        return
    if _gathered is None:
        logger.warning("%s", line(found))
        return
    kind = _gathered.setdefault(subject, _Kind(line))
    kind.found |= found
    if not kind.told:
        logger.warning("%s", line(found))
        kind.told = len(kind.found)


def tell_lost(lost: Mapping[str, str], length: int, reader: str = "the model") -> None:
    """Warn of the ends of prompts that lie beyond the tokens that are read."""

    def line(lost: Mapping[str, str]) -> str:
        prompt, words = next(iter(lost.items()))
        text = f"{reader} reads {length} tokens of a prompt: lost is {words!r} of "
        text += repr(shorten(prompt, 60, placeholder=" …"))
        more = len(lost) - 1
        return text + (f", and the end of {more} other{'s' if more > 1 else ''}" if more else "")

    tell(f"{reader}/{length}", lost, line)


def lost_words(tokenizer: Any, prompts: Sequence[str], length: int) -> dict[str, str]:
    """Words that a cut at `length` tokens takes away, by prompt that has more."""
    lost: dict[str, str] = {}
    for prompt in dict.fromkeys(prompts):
        asked: dict[str, Any] = {"return_offsets_mapping": tokenizer.is_fast, "verbose": False}
        whole = tokenizer(prompt, **asked)
        if len(whole["input_ids"]) <= length:
            continue
        kept = tokenizer(prompt, max_length=length, truncation=True, **asked)
        if tokenizer.is_fast:
            end = max((last for _, last in kept["offset_mapping"]), default=0)
            while 0 < end < len(prompt) and (prompt[end - 1 : end + 1]).isalnum():
                end -= 1  # a word in two is lost as a whole
            lost[prompt] = prompt[end:].strip()
        else:
            marks = set(tokenizer.all_special_ids)
            first = sum(token not in marks for token in kept["input_ids"])
            said = [token for token in whole["input_ids"] if token not in marks]
            lost[prompt] = tokenizer.decode(said[first:]).strip()
    return lost
