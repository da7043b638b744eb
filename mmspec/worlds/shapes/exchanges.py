"""Pictures with questions and true answers, for training and evaluation of language models."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np

from ...errors import InputError
from ...files import parse_json, read_text, to_json, write_atomic
from .answers import is_correct
from .chart_claims import score_chart
from .chart_texts import CHART_KINDS, ask_chart, describe_chart
from .charts import FORMS, Chart, Form, render_chart, sample_chart
from .claims import DescriptionScore, score_description
from .descriptions import describe
from .mixed import sample_mixed
from .phrases import REQUESTS as PHRASES
from .questions import SCENE_KINDS, Question, ask
from .render import render
from .scene import Scene
from .vocabulary import Split
from .wording import Wording

Picture = Scene | Chart
SHORT_KINDS = (*SCENE_KINDS, *CHART_KINDS)  # answered by a word or two
LONG_KINDS = ("description", "chart_description")
KINDS = (*SHORT_KINDS, *LONG_KINDS)
_OBJECTS = (2, 3, 3, 4, 4)  # of a scene that is described at length


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
        request = Wording(rng, PHRASES).say("{request}", {})
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


_STREAM = 40_000  # of seeds, apart from those of training


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
        made, exchange = _made(self.seed, self.kind)
        if (exchange.question, exchange.answer) != (self.question, self.answer):
            raise InputError(f"question {self.id} does not fit its seed: it is of another version")
        return made

    def is_right(self, answer: str) -> bool:
        """Whether a short answer is right."""
        return is_correct(answer, self.answer)

    def line(self) -> dict[str, Any]:
        """What stands in the file."""
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


def read_held_out(path: Path) -> list[HeldOut]:
    """The lines of a list."""
    rows = (parse_json(line, str(path)) for line in read_text(path).splitlines())
    return [HeldOut(**{**row, "seed": tuple(row["seed"])}) for row in rows]


class Line(Protocol):
    """An entry of a held-out list of any world."""

    def line(self) -> dict[str, Any]:
        """What stands in the file."""


def write_held_out(path: Path, lines: Iterable[Line]) -> None:
    """A list as a file, a line each."""
    write_atomic(path, "".join(to_json(line.line()) + "\n" for line in lines))


def _held_out(kind: str, seed: tuple[int, int, int]) -> HeldOut:
    exchange = _made(seed, kind)[1]
    return HeldOut(f"{kind}-{seed[-1]}", seed, kind, exchange.question, exchange.answer)


def _made(seed: tuple[int, int, int], kind: str) -> tuple[Picture, Exchange]:
    return sample_exchange(np.random.default_rng(seed), kind, "held_out")
