"""Scores of predicted answers, by the metric of each benchmark."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ...errors import InputError
from ...registry import check_name
from ..data.questions import PictureQuestion, Prediction
from ..metrics.anls import Anls
from ..metrics.answer_metric import AnswerMetric
from ..metrics.multiple_choice import MultipleChoiceAccuracy
from ..metrics.relaxed_accuracy import RelaxedAccuracy
from ..metrics.vqa_accuracy import VqaAccuracy, normalize_textvqa

METRICS: dict[str, Callable[[], AnswerMetric]] = {
    "vqav2": VqaAccuracy,
    "textvqa": functools.partial(VqaAccuracy, normalize_textvqa, normalize_unanimous=True),
    "chartqa": RelaxedAccuracy,
    "docvqa": Anls,
    "mmmu": MultipleChoiceAccuracy,
}
"""The metric of each benchmark; for data of your own, name the one whose metric fits."""

IDS = {
    "chartqa": "FILESTEM-INDEX, the questions' file without its suffix and the place in it from 0",
    "docvqa": "the data's questionId",
    "mmmu": "the data's id",
    "textvqa": "the data's question_id",
    "vqav2": "the data's question_id",
}
"""What a benchmark's own questions are known by: the `question_id` of a prediction."""


def score_answers(
    questions: Sequence[PictureQuestion],
    predictions: Iterable[Prediction] | Mapping[str, str],
    metric: str,
    partial: bool = False,
) -> dict[str, Any]:
    """Score predictions by a benchmark's metric.

    Args:
        questions: all of them; the result follows their order.
        predictions: at most one a question, in any order; or answers by question id.
        metric: a name in `METRICS`.
        partial: whether questions without a prediction may be left out. The figure is then of
            another, maybe easier, set of questions.

    Returns:
        `n` questions scored, `missing` ones left out, `quality` (the mean, and by subject if there
        are any), `question_ids` of the scored ones and their `scores`.

    Raises:
        InputError: unknown metric or question id, two predictions for one question, a question
            without a prediction (unless `partial`) or without answers, or nothing to score.
    """
    check_name("metric", metric, METRICS)
    answers = _by_question(questions, predictions, metric)
    missing = [question for question in questions if question.id not in answers]
    if missing and not partial:
        raise InputError(
            f"{_name(missing[0])}: no prediction for question {missing[0].id} "
            f"({len(missing)} of {len(questions)} questions have none); "
            f"predict them or ask for a partial score; {_ids(questions, metric)}"
        )
    scorer = METRICS[metric]()
    scored = [question for question in questions if question.id in answers]
    for question in scored:
        try:
            scorer.update(
                answers[question.id], question.answers, question.options, question.subject
            )
        except InputError as error:
            raise InputError(f"{_name(question)}: {error}") from error
    return {
        "n": len(scored),
        "missing": len(missing),
        "quality": scorer.compute(),
        "question_ids": [question.id for question in scored],
        "scores": scorer.scores,
    }


def _by_question(
    questions: Sequence[PictureQuestion],
    predictions: Iterable[Prediction] | Mapping[str, str],
    metric: str,
) -> dict[str, str]:
    if isinstance(predictions, Mapping):
        predictions = [Prediction(key, answer) for key, answer in predictions.items()]
    known = {question.id for question in questions}
    answers: dict[str, str] = {}
    for prediction in predictions:
        key, where = prediction.question_id, prediction.where or "predictions"
        if key not in known:
            raise InputError(f"{where}: there is no question {key}; {_ids(questions, metric)}")
        if key in answers:
            raise InputError(f"{where}: question {key} is answered already")
        answers[key] = prediction.answer
    return answers


def _ids(questions: Sequence[PictureQuestion], metric: str) -> str:
    """What ids look like, here and in the benchmark's own files."""
    here = f"ids here are such as {questions[0].id}; " if questions else ""
    return f"{here}{metric}'s own are {IDS[metric]}"


def _name(question: PictureQuestion) -> str:
    return question.where or f"question {question.id}"
