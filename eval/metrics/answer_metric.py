"""Base of the metrics of text answers: one score a question, and means of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import InputError
from ...registry import resolve
from .base import Metric

if TYPE_CHECKING:
    from ..data.questions import BenchmarkQuestion
    from ..measure.score_files import Given


class AnswerMetric:
    """Scores from 0 to 1, one a question; reported as their mean, overall and by subject.

    Args:
        name: the metric's standard name, as reports spell it.
        score: of an answer, the reference answers, at least one, and the options' texts.
    """

    def __init__(
        self, name: str, score: Callable[[str, tuple[str, ...], Sequence[str]], float]
    ) -> None:
        self.name, self._score = name, score
        self.reset()

    def reset(self) -> None:
        """Forget all questions."""
        self._scores: list[float] = []
        self._subjects: list[str] = []

    @property
    def scores(self) -> list[float]:
        """Scores by question, in the order of the updates, for paired intervals."""
        return list(self._scores)

    def update(
        self,
        prediction: str,
        answers: str | Sequence[str],
        options: Sequence[str] = (),
        subject: str = "",
    ) -> None:
        """Score one question.

        Args:
            prediction: what the model says.
            answers: the reference answers; what several of them mean is the metric's.
            options: the texts of the options, of a multiple-choice question.
            subject: the group that the question counts for too, if it has one.

        Raises:
            InputError: the question can't be scored; nothing is added.
        """
        answers = (answers,) if isinstance(answers, str) else tuple(answers)
        if not answers:
            raise InputError("the question has no reference answer")
        self._scores.append(self._score(prediction, answers, options))
        self._subjects.append(subject)

    def compute(self) -> dict[str, float]:
        """The mean as `name`, and as `name/subject` the mean of each subject.

        Raises:
            InputError: no question was scored.
        """
        if not self._scores:
            raise InputError(f"{self.name} needs at least one scored question")
        groups: dict[str, list[float]] = {}
        for subject, score in sorted(zip(self._subjects, self._scores, strict=True)):
            if subject:
                groups.setdefault(f"{self.name}/{subject}", []).append(score)
        means = {name: math.fsum(scores) / len(scores) for name, scores in groups.items()}
        return {self.name: math.fsum(self._scores) / len(self._scores), **means}


def mean_of(
    name: str, score: Callable[[str, tuple[str, ...]], float]
) -> Callable[[], AnswerMetric]:
    """Makes the metric of a score that heeds no options."""
    return lambda: AnswerMetric(name, lambda said, answers, options: score(said, answers))


@dataclass(frozen=True, kw_only=True)
class AnswerBenchmark(Metric):
    """A benchmark of questions, declared beside its metric; answers come from a file.

    Attributes:
        metric: makes what scores the answers.
        reader: `"module:function"` that reads the benchmark's own questions.
        ids: what the benchmark's own questions are known by: the `question_id` of a prediction.
        parquet: its own questions are Parquet files; else these hold questions in the common form.
    """

    scorer = "mmspec.eval.measure.vqa:score_answer_files"
    sources = ("answers",)

    metric: Callable[[], AnswerMetric]
    reader: str
    ids: str
    parquet: bool = False
    needs: tuple[str, ...] = ("questions", "predictions")
    takes: tuple[str, ...] = ("partial",)
    bounds: tuple[float, float] = (0, 1)

    def read(self, given: Given) -> list[BenchmarkQuestion]:
        """The questions, in the benchmark's own form or the common one.

        Raises:
            InputError: they are in neither form.
        """
        from ..data.answers import read_questions

        path = given.path("questions")
        common = path.suffix == ".jsonl" or (path.suffix == ".parquet" and not self.parquet)
        read = read_questions if common else resolve(self.reader)
        return read(path)
