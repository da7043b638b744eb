"""Scores of predicted answers, by the metric of each benchmark."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...registry import check_name
from ..data.answers import read_predictions
from ..data.questions import BenchmarkQuestion, Prediction
from ..metrics.answer_metric import AnswerBenchmark
from ..metrics.registry import metrics_of
from .score_files import mean_with_interval, only_metric

if TYPE_CHECKING:
    from ..suite import Suite
    from .score_files import Given, OnLine, Progress


def score_answer_files(
    suite: Suite, given: Given, on_line: OnLine, progress: Progress | None
) -> dict[str, Any]:
    """The user's file of answers; see `score_given`."""
    first = only_metric(
        suite, AnswerBenchmark, "answers are of one benchmark: choose {} with --metrics"
    )
    questions = first.read(given)
    predictions = read_predictions(given.path("predictions"))
    found = score_answers(questions, predictions, first.name, given.partial)
    for name, score in zip(found["question_ids"], found["scores"], strict=True):
        on_line({"metric": first.name, "id": name, "value": score})
    figures = dict(found["quality"])
    value = figures.pop(next(iter(figures)))  # the mean comes first, then those of the subjects
    parts = {name.partition("/")[2] or name: figure for name, figure in figures.items()}
    missing = found["missing"]
    notes = [f"{missing} questions have no prediction and are left out"] if missing else []
    scored = {
        **mean_with_interval(found["scores"], value, first.span),
        "parts": parts,
        "notes": notes,
    }
    return {"n": found["n"], "missing": missing, "metrics": {first.name: scored}}


def score_answers(
    questions: Sequence[BenchmarkQuestion],
    predictions: Iterable[Prediction] | Mapping[str, str],
    metric: str,
    partial: bool = False,
) -> dict[str, Any]:
    """Score predictions by a benchmark's metric.

    Args:
        questions: all of them; the result follows their order.
        predictions: at most one a question, in any order; or answers by question id.
        metric: the benchmark's name; for data of your own, one whose metric fits.
        partial: whether questions without a prediction may be left out. The figure is then of
            another, maybe easier, set of questions.

    Returns:
        `n` questions scored, `missing` ones left out, `quality` (the mean, and by subject if there
        are any), `question_ids` of the scored ones and their `scores`.

    Raises:
        InputError: unknown metric or question id, two predictions for one question, a question
            without a prediction (unless `partial`) or without answers, or nothing to score.
    """
    known = metrics_of(AnswerBenchmark)
    check_name("metric", metric, known)
    benchmark = known[metric]
    answers = _by_question(questions, predictions, benchmark)
    missing = [question for question in questions if question.id not in answers]
    if missing and not partial:
        raise InputError(
            f"{_name(missing[0])}: no prediction for question {missing[0].id} "
            f"({len(missing)} of {len(questions)} questions have none); "
            f"predict them or ask for a partial score; {_ids(questions, benchmark)}"
        )
    scorer = benchmark.metric()
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
    questions: Sequence[BenchmarkQuestion],
    predictions: Iterable[Prediction] | Mapping[str, str],
    benchmark: AnswerBenchmark,
) -> dict[str, str]:
    if isinstance(predictions, Mapping):
        predictions = [Prediction(key, answer) for key, answer in predictions.items()]
    known = {question.id for question in questions}
    answers: dict[str, str] = {}
    for prediction in predictions:
        key, where = prediction.question_id, prediction.where or "predictions"
        if key not in known:
            raise InputError(f"{where}: there is no question {key}; {_ids(questions, benchmark)}")
        if key in answers:
            raise InputError(f"{where}: question {key} is answered already")
        answers[key] = prediction.answer
    return answers


def _ids(questions: Sequence[BenchmarkQuestion], benchmark: AnswerBenchmark) -> str:
    """Examples of ids, here and in the benchmark's own files."""
    here = f"ids here are such as {questions[0].id}; " if questions else ""
    return f"{here}{benchmark.name}'s own are {benchmark.ids}"


def _name(question: BenchmarkQuestion) -> str:
    return question.where or f"question {question.id}"
