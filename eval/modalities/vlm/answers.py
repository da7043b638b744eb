"""Answers of variants to questions about pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from ....engine.stats import SpecStats
from ....pipelines.verdict.verdict import Cost


@dataclass(frozen=True)
class Chosen:
    """Choice of an elastic compressor for one question.

    Attributes:
        branch: of the elastic compressor.
        visual, kept: tokens of its pictures, and how many of them the head reads.
        seconds: in the gate and the branches; of a batch, its share.
    """

    branch: str
    visual: int
    kept: int
    seconds: float


@dataclass
class Answers:
    """Answers to some questions.

    Attributes:
        text: the answers.
        tokens: their ids; empty where nobody keeps them.
        stats: what they took, all together.
        choices: of a compressor that chooses, question by question.
        members: of a method of several models what each took, by name, question by question.
    """

    text: list[str]
    tokens: list[list[int]]
    stats: SpecStats
    members: list[dict[str, Cost]] = field(default_factory=list)
    choices: list[Chosen] = field(default_factory=list)


@dataclass(frozen=True)
class Questions:
    """Some samples: a picture and a question each."""

    pictures: list[Image.Image]
    texts: list[str]


@dataclass(frozen=True)
class OneByOne:
    """A variant that answers one question at a time.

    Attributes:
        answer: to a picture, a question, a seed, and the arguments of a pipeline's call.
    """

    answer: Callable[[Image.Image, str, int, Mapping[str, Any]], Answers]

    def prepare(
        self, inputs: Questions, seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Answers]:

        def answers() -> Answers:
            rows = zip(inputs.pictures, inputs.texts, seeds, strict=True)
            first, *others = [self.answer(*row, call) for row in rows]
            first.stats = first.stats.merged([one.stats for one in others])
            for one in others:
                first.text += one.text
                first.tokens += one.tokens
                first.members += one.members
            return first

        return answers
