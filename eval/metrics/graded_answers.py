"""Metrics of what a vision-language pipeline answers about pictures whose truth is known."""

from __future__ import annotations

from .base import RunMetric


class AnswerGrade(RunMetric):
    """Grade of an answer by the shapes world; see `mmspec.eval.data.picture_questions`."""


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
