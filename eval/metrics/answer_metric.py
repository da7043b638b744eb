"""What all metrics of text answers share: one score a question, and means of them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ...errors import InputError


class AnswerMetric(ABC):
    """Scores from 0 to 1, one a question; reported as their mean, overall and by subject.

    Attributes:
        name: the metric's standard name, as reports spell it.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget all questions."""
        self._scores: list[float] = []
        self._subjects: list[str] = []

    @property
    def scores(self) -> list[float]:
        """Per question, in the order of the updates: what paired intervals are made of."""
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

    @abstractmethod
    def _score(self, prediction: str, answers: tuple[str, ...], options: Sequence[str]) -> float:
        """The score of one question; `answers` is not empty."""
