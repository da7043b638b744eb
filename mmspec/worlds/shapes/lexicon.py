"""Every word that questions and answers of the shapes world are made of."""

from __future__ import annotations

from . import chart_texts, descriptions, exchanges, questions
from .vocabulary import COLORS, RELATIONS, SHAPES
from .wording import pieces, words_of


def lexicon() -> list[str]:
    """The pieces in a fixed order: with the space in front of them, at the start, or both."""
    rooms = (descriptions, questions, chart_texts)
    found = words_of(exchanges.PHRASES)
    for room in rooms:
        found |= words_of(room.PHRASES)
        for word in room.WORDS:
            found |= {word, " " + word, word.capitalize(), " " + word.capitalize()}
    found |= {*COLORS, *SHAPES, *(relation.split()[0] for relation in RELATIONS), "yes", "no"}
    found |= {form for digit in range(10) for form in (str(digit), f" {digit}")}
    return sorted(piece for text in found for piece in pieces(text))
