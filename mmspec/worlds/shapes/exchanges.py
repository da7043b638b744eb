"""Pictures with questions and true answers, for training and evaluation of language models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from ...errors import InputError
from . import chart_texts, descriptions, questions
from .chart_claims import score_chart
from .chart_texts import CHART_KINDS, ask_chart, describe_chart
from .charts import FORMS, Chart, Form, render_chart, sample_chart
from .claims import DescriptionScore, score_description
from .descriptions import describe
from .questions import SCENE_KINDS, Question, ask
from .render import render
from .scene import Scene, sample_mixed
from .vocabulary import COLORS, RELATIONS, SHAPES, Split
from .wording import CHARTS, QUESTIONS, REQUESTS, SCENES, Wording, pieces, words_of

Picture = Scene | Chart
SHORT_KINDS = (*SCENE_KINDS, *CHART_KINDS)  # answered by a word or two
LONG_KINDS = ("description", "chart_description")
KINDS = (*SHORT_KINDS, *LONG_KINDS)
_OBJECTS = (2, 3, 3, 4, 4)  # of a scene that is described at length
_STREAM = 40_000  # of held-out seeds, apart from those of training
# of an answer: one word for a thing, numbers as digits
_WORDS = {option.split()[0]: shape for shape in SHAPES for option in SCENES[shape]}
_WORDS |= {"none": "0", "zero": "0", "one": "1", "two": "2", "three": "3", "four": "4"}
_WORDS |= {"five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10"}
_WORDS |= {"under": "below", "beneath": "below", "over": "above", "yeah": "yes", "gray": "grey"}
_FILLERS = {"a", "an", "the", "it", "is", "are", "there", "to", "of", "on", "in", "side"}
_FILLERS |= {"shape", "sign", "moon", "slice", "bar", "point", "at"}


@dataclass(frozen=True)
class Exchange:
    """A question of a kind about a picture, and its answer.

    Attributes:
        nats: entropy of the choices behind a description, 0 for short answers.
    """

    kind: str
    question: str
    answer: str
    nats: float = 0.0


def sample_picture(rng: np.random.Generator, kind: str, split: Split = "train") -> Picture:
    """A scene or chart that questions of `kind` can be asked about."""
    if kind in CHART_KINDS:
        return sample_chart(rng, cast(Form, kind.removesuffix("_chart")), split)
    if kind == "chart_description":
        return sample_chart(rng, FORMS[int(rng.integers(len(FORMS)))], split)
    count = _OBJECTS[int(rng.integers(len(_OBJECTS)))] if kind == "description" else None
    return sample_mixed(rng, split, count)


def exchange_about(
    rng: np.random.Generator, picture: Picture, kind: str, split: Split = "train"
) -> Exchange | None:
    """A question of `kind` about a picture; None if the picture has none."""
    if kind in LONG_KINDS:
        request = Wording(rng, REQUESTS).say("{request}", {})
        if isinstance(picture, Chart):
            return Exchange(kind, request, *describe_chart(rng, picture))
        return Exchange(kind, request, *describe(rng, picture, split))
    question: Question | None
    if isinstance(picture, Chart):
        question = ask_chart(rng, picture)
    else:
        question = ask(rng, picture, kind, split)
    return Exchange(kind, question.text, question.answer) if question else None


def sample_exchange(
    rng: np.random.Generator, kind: str, split: Split = "train"
) -> tuple[Picture, Exchange]:
    """A picture and a question of `kind` about it."""
    while True:
        picture = sample_picture(rng, kind, split)
        exchange = exchange_about(rng, picture, kind, split)
        if exchange:
            return picture, exchange


def draw(picture: Picture, resolution: int = 128) -> np.ndarray:
    """The picture as RGB `[resolution, resolution, 3]`, uint8."""
    if isinstance(picture, Chart):
        return render_chart(picture, resolution)
    return render(picture, resolution)


def score_long(text: str, picture: Picture) -> DescriptionScore:
    """Score of a description of the picture."""
    if isinstance(picture, Chart):
        return score_chart(text, picture)
    return score_description(text, picture)


def score_step(before: str, step: str, picture: Picture) -> float:
    """Share of the claims which a step adds to a description that hold; 1 if it adds none.

    An object may come under another name once more is said: a claim in front that is false for it
    counts against the step.
    """
    first, whole = (score_long(text, picture) for text in (before, before + step))
    claims = whole.claims - first.claims
    wrong = max(0, whole.claims - whole.true - (first.claims - first.true))
    return 1.0 - wrong / max(claims, wrong, 1)


def normalize(answer: str) -> str:
    """Lower case, without punctuation, articles and the like, numbers as digits, one word for a
    thing. A number keeps its minus."""
    return " ".join(_WORDS.get(word, word) for word in _words(answer) if word not in _FILLERS)


def _words(answer: str) -> list[str]:
    return re.findall(r"(?<!\w)-\d\w*|\w+", answer.lower().replace("\N{MINUS SIGN}", "-"))


def is_correct(answer: str, truth: str) -> bool:
    """Test whether the two are equal once normalized; of a truth that leaves nothing, all words."""
    wanted = normalize(truth)
    return normalize(answer) == wanted if wanted else _words(answer) == _words(truth)


def accuracy_by_kind(graded: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Share of right answers of every kind, from pairs of kind and whether it was right."""
    kinds: dict[str, list[bool]] = {}
    for kind, right in graded:
        kinds.setdefault(kind, []).append(right)
    return {kind: sum(rights) / len(rights) for kind, rights in kinds.items()}


@dataclass(frozen=True)
class HeldOut:
    """A line of a held-out list; the seed makes the picture again.

    Attributes:
        id: unique in its list.
        seed: of the generator, with which `sample_exchange` gives all the rest.
    """

    id: str
    seed: tuple[int, int, int]
    kind: str
    question: str
    answer: str

    def picture(self) -> Picture:
        """The picture that it asks about.

        Raises:
            InputError: the line is not what its seed makes.
        """
        rng = np.random.default_rng(self.seed)
        made, exchange = sample_exchange(rng, self.kind, "held_out")
        if (exchange.question, exchange.answer) != (self.question, self.answer):
            raise InputError(f"question {self.id} does not fit its seed: it is of another version")
        return made

    def is_right(self, answer: str) -> bool:
        """Test whether a short answer is right."""
        return is_correct(answer, self.answer)

    def line(self) -> dict[str, Any]:
        """Line of the file."""
        return {**vars(self), "seed": list(self.seed)}


def held_out_questions(per_kind: int, seed: int = 0) -> Iterator[HeldOut]:
    """Short questions about pictures with what training never shows, the kinds in turn."""
    for number in range(per_kind):
        for place, kind in enumerate(SHORT_KINDS):
            yield _held_out(kind, (_STREAM, seed, number * len(SHORT_KINDS) + place))


def held_out_descriptions(number: int, seed: int = 0) -> Iterator[HeldOut]:
    """Requests for long answers: three of scenes, then one of a chart, and so on."""
    for place in range(number):
        yield _held_out(LONG_KINDS[place % 4 == 3], (_STREAM + 1, seed, place))


def lexicon() -> list[str]:
    """The words of questions and answers in order: after a space, at the start, or both."""
    found: set[str] = set()
    for phrases in (REQUESTS, SCENES, QUESTIONS, CHARTS):
        found |= words_of(phrases)
    for room in (descriptions, questions, chart_texts):
        for word in room.WORDS:
            found |= {word, " " + word, word.capitalize(), " " + word.capitalize()}
    found |= {*COLORS, *SHAPES, *(relation.split()[0] for relation in RELATIONS), "yes", "no"}
    found |= {form for digit in range(10) for form in (str(digit), f" {digit}")}
    return sorted(piece for text in found for piece in pieces(text))


def _held_out(kind: str, seed: tuple[int, int, int]) -> HeldOut:
    _, exchange = sample_exchange(np.random.default_rng(seed), kind, "held_out")
    return HeldOut(f"{kind}-{seed[-1]}", seed, kind, exchange.question, exchange.answer)
