"""Answers of variants to questions about pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from PIL import Image

from ....engine.stats import SpecStats
from ....models.step_reward import StepReward
from ....pipelines.verdict.verdict import Cost
from ...run.job import Job

_TOKENS = 128  # new tokens of an answer where nobody says


def most_tokens(job: Job) -> int:
    """New tokens that an answer may have in any of a job's ways to call."""
    return max(int(call.get("max_new_tokens", _TOKENS)) for call in job.calls.values())


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
        turns: of conversations, ids answer by answer.
    """

    text: list[str]
    tokens: list[list[int]]
    stats: SpecStats
    members: list[dict[str, Cost]] = field(default_factory=list)
    choices: list[Chosen] = field(default_factory=list)
    turns: list[list[list[int]]] = field(default_factory=list)

    def joined(self, others: Sequence[Answers]) -> Answers:
        """These answers and others."""
        everyone = [self, *others]

        def rows(name: str) -> Any:
            return [row for one in everyone for row in getattr(one, name)]

        lists = {f.name: rows(f.name) for f in fields(self) if f.name != "stats"}
        return Answers(stats=self.stats.merged([one.stats for one in others]), **lists)


@dataclass(frozen=True)
class Questions:
    """Some samples: a picture and a question each.

    Attributes:
        truth: scores steps of their answers, for an oracle; None: nobody knows.
    """

    pictures: list[Image.Image]
    texts: list[str]
    truth: StepReward | None = None


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
            return first.joined(others)

        return answers
