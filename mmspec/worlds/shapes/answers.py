"""Whether a short answer is right, in whatever words it is given."""

from __future__ import annotations

import re
from collections.abc import Iterable

from .phrases import PHRASES
from .vocabulary import SHAPES

_WORDS = {option.split()[0]: shape for shape in SHAPES for option in PHRASES[shape]}
_WORDS |= {"none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4"}
_WORDS |= {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_WORDS |= {"under": "below", "beneath": "below", "over": "above", "yeah": "yes", "gray": "grey"}
_FILLERS = {"a", "an", "the", "it", "is", "are", "there", "to", "of", "on", "in", "side"}
_FILLERS |= {"shape", "sign", "moon", "slice", "bar", "point", "at"}


def normalize(answer: str) -> str:
    """Lower case, without signs, articles and the like, numbers as digits, one word for a thing."""
    words = re.findall(r"\w+", answer.lower())
    return " ".join(_WORDS.get(word, word) for word in words if word not in _FILLERS)


def is_correct(answer: str, truth: str) -> bool:
    """Whether the two are equal once normalized."""
    return normalize(answer) == normalize(truth)


def accuracy_by_kind(graded: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Share of right answers of every kind, from pairs of kind and whether it was right."""
    kinds: dict[str, list[bool]] = {}
    for kind, right in graded:
        kinds.setdefault(kind, []).append(right)
    return {kind: sum(rights) / len(rights) for kind, rights in kinds.items()}
