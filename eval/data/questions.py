"""Questions of benchmarks, and answers of models."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BenchmarkQuestion:
    """Question of a benchmark with its reference answers.

    Attributes:
        id: unique in the benchmark, as text.
        question: as the benchmark words it; MMMU's names its pictures as `<image 1>`.
        answers: reference answers, one or one from each annotator; none in hidden test sets.
        options: their texts, A first; none if the question is not multiple-choice.
        subject: the group that it is also scored in, or "".
        where: the file and entry that it was read from, for error messages.
    """

    id: str
    question: str
    answers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    subject: str = ""
    where: str = ""


@dataclass(frozen=True)
class Prediction:
    """Answer of a model to a question of a benchmark.

    Attributes:
        question_id: the `BenchmarkQuestion.id` that it belongs to.
        answer: the text, as generated.
        where: the file and entry that it was read from, for error messages.
    """

    question_id: str
    answer: str
    where: str = ""
