"""The alternatives in which scenes and charts are told and asked about, from `phrases.json`."""

from __future__ import annotations

from pathlib import Path

from ...files import read_object
from .vocabulary import SHAPES
from .wording import Phrases

_TABLES = read_object(Path(__file__).with_name("phrases.json"))
SCENES, QUESTIONS, CHARTS, REQUESTS = (
    {key: tuple(options) for key, options in _TABLES[name].items()}
    for name in ("scenes", "questions", "charts", "requests")
)
_SHARED = (*SHAPES, "picture", "object", "objects", "larger", "smaller")
PHRASES: Phrases = SCENES
QUESTION_PHRASES: Phrases = {**{key: SCENES[key] for key in _SHARED}, **QUESTIONS}
