"""Every word that questions and answers of the shapes world are made of."""

from __future__ import annotations

from . import chart_texts, descriptions, questions
from .phrases import CHARTS, QUESTION_PHRASES, REQUESTS, SCENES
from .vocabulary import COLORS, RELATIONS, SHAPES
from .wording import pieces, words_of


def lexicon() -> list[str]:
    """The pieces in a fixed order: with the space in front of them, at the start, or both."""
    found: set[str] = set()
    for phrases in (REQUESTS, SCENES, QUESTION_PHRASES, CHARTS):
        found |= words_of(phrases)
    for room in (descriptions, questions, chart_texts):
        for word in room.WORDS:
            found |= {word, " " + word, word.capitalize(), " " + word.capitalize()}
    found |= {*COLORS, *SHAPES, *(relation.split()[0] for relation in RELATIONS), "yes", "no"}
    found |= {form for digit in range(10) for form in (str(digit), f" {digit}")}
    return sorted(piece for text in found for piece in pieces(text))
