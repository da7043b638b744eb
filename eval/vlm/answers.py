"""What an arm of a run gives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from PIL import Image

from ...engine.stats import SpecStats
from ...pipelines.verdict.verdict import Cost
from .elastic import Chosen


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

    @classmethod
    def joined(cls, parts: Sequence[Answers]) -> Answers:
        """Answers to one question after the other, as one."""
        first, *others = parts
        return cls(
            [text for part in parts for text in part.text],
            [ids for part in parts for ids in part.tokens],
            first.stats.merged([part.stats for part in others]),
            [costs for part in parts for costs in part.members],
            [one for part in parts for one in part.choices],
        )


@dataclass(frozen=True)
class Batch:
    """Some samples: a picture, a question and a seed each."""

    pictures: list[Image.Image]
    questions: list[str]
    seeds: list[int]

    def rows(self) -> Iterator[tuple[Image.Image, str, int]]:
        """One after the other."""
        return zip(self.pictures, self.questions, self.seeds, strict=True)


class Arm(Protocol):
    """Answers questions, and so makes a row of each way to call."""

    def answer(self, asked: Batch, call: Mapping[str, Any]) -> Answers:
        """The answers; `call` are arguments of a pipeline's call."""


class SingleArm(ABC):
    """An arm that answers one question at a time."""

    def answer(self, asked: Batch, call: Mapping[str, Any]) -> Answers:
        """See `Arm.answer`."""
        return Answers.joined([self.one(*row, call) for row in asked.rows()])

    @abstractmethod
    def one(
        self, picture: Image.Image, question: str, seed: int, call: Mapping[str, Any]
    ) -> Answers:
        """The answer to one question."""
