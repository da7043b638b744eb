"""Metrics of what a vision-language pipeline answers about pictures whose truth is known."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Metric


@dataclass(frozen=True, kw_only=True)
class AnswerGrade(Metric):
    """What the shapes world says of an answer; see `mmspec.eval.data.picture_questions`."""

    bounds: tuple[float, float] = (0, 1)


ACCURACY = AnswerGrade(
    name="accuracy",
    summary="share of short answers that are right, mean over kinds of questions",
    by_task=True,
    told_by_task=True,
)
TRUTHFULNESS = AnswerGrade(
    name="truthfulness", summary="share of a description's claims that hold in the scene"
)
COVERAGE = AnswerGrade(
    name="coverage", summary="share of the scene's objects that a description introduces"
)
