"""Words drawn from alternatives, so that one fact is told in many ways, and their entropy."""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar

import numpy as np

from ...files import read_object
from .vocabulary import SHAPES

T = TypeVar("T")
Phrases = Mapping[str, tuple[str, ...]]

PIECE = r" ?\w+| ?[^\w\s]"  # what the tokenizer calls a word: with the space in front of it
_SLOT = re.compile(r"\{(\w+)\}")
_TABLES = read_object(Path(__file__).with_name("phrases.json"))
# the alternatives in which scenes and charts are told and asked about
SCENES, QUESTIONS, CHARTS, REQUESTS = (
    {key: tuple(options) for key, options in _TABLES[name].items()}
    for name in ("scenes", "questions", "charts", "requests")
)
_SHARED = (*SHAPES, "picture", "object", "objects", "larger", "smaller")
QUESTIONS = {**{key: SCENES[key] for key in _SHARED}, **QUESTIONS}


class Wording:
    """Draws from `phrases`, alternatives whose `{slots}` are facts or further phrases.

    The first alternative is the likeliest, as words are in a language (Zipf's law): a greedy reader
    of the text then has one habit, though a sampled text has much entropy.

    Attributes:
        nats: minus the log-probability of what was drawn so far.
    """

    def __init__(self, rng: np.random.Generator, phrases: Phrases) -> None:
        self.rng, self.phrases, self.nats = rng, phrases, 0.0

    def pick(self, options: Sequence[T]) -> T:
        """Pick one of the options, the k-th in proportion to 1 / k."""
        return options[self._draw(_zipf(len(options)))]

    def chance(self, share: float) -> bool:
        """True with probability `share`."""
        return self._draw((1 - share, 1.0)) == 1

    def order(self, things: Sequence[T], keeping: float = 0.5) -> Iterator[T]:
        """The things in a random order near the given one.

        Of those left the first is the likeliest, and every next one `keeping` times as likely.
        """
        left = list(things)
        while left:
            yield left.pop(self._draw(_geometric(len(left), keeping)))

    def say(self, template: str, facts: Mapping[str, str]) -> str:
        """The template with its slots filled, those of what fills them too."""
        return _SLOT.sub(
            lambda slot: self.say(
                facts[slot[1]] if slot[1] in facts else self.pick(self.phrases[slot[1]]), facts
            ),
            template,
        )

    def sentence(self, template: str, facts: Mapping[str, str], end: str = ".") -> str:
        """Fill the template and make it a sentence."""
        text = re.sub(r"\ba (?=[aeiou])", "an ", self.say(template, facts))
        return text[0].upper() + text[1:] + end

    def _draw(self, bounds: tuple[float, ...]) -> int:
        """An index, of the cumulative probabilities."""
        index = bisect.bisect_right(bounds, self.rng.random(), hi=len(bounds) - 1)
        self.nats -= math.log(bounds[index] - (bounds[index - 1] if index else 0.0))
        return index


@cache
def _zipf(n: int) -> tuple[float, ...]:
    weights = 1 / np.arange(1, n + 1)
    return tuple(np.cumsum(weights / weights.sum()).tolist())


@cache
def _geometric(n: int, ratio: float) -> tuple[float, ...]:
    weights = ratio ** np.arange(n)
    return tuple(np.cumsum(weights / weights.sum()).tolist())


def pieces(text: str) -> list[str]:
    """The words and signs of a text; joined they are the text."""
    return re.findall(PIECE, text)


def words_of(phrases: Phrases) -> set[str]:
    """Collect the words that texts drawn from `phrases` can hold, and a few more."""
    found = {" an", "An", " An", ".", "?"}
    for option in (option for options in phrases.values() for option in options):
        literal = _SLOT.sub("\0", option).replace("\0", " ")
        for place, piece in enumerate(pieces(literal)):
            word = piece.strip()
            found |= {word, " " + word} if word.isalpha() else {piece, word}
            if place == 0:
                found |= {word.capitalize(), " " + word.capitalize()}
    return found
