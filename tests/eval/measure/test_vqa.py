"""Scoring by benchmark: each metric's own choice, order, and predictions that do not fit."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from mmspec.errors import InputError
from mmspec.eval.data.answers import read_predictions, read_questions
from mmspec.eval.data.questions import BenchmarkQuestion, Prediction
from mmspec.eval.measure.vqa import score_answers
from mmspec.eval.metrics.registry import metrics_for


def asked(key: str, *answers: str, **more) -> BenchmarkQuestion:
    return BenchmarkQuestion(key, "?", answers=answers, where=f"q.jsonl, line {key}", **more)


def test_each_benchmark_has_its_metric():
    ten = [asked("1", *["stop"] * 10)]
    # the same question and answer, judged five ways
    assert score_answers(ten, {"1": "Stop."}, "vqav2")["quality"] == {"vqa_accuracy": 0}
    assert score_answers(ten, {"1": "Stop."}, "textvqa")["quality"] == {"vqa_accuracy": 1}
    assert score_answers(ten, {"1": "Stop."}, "chartqa")["quality"] == {"relaxed_accuracy": 0}
    assert score_answers(ten, {"1": "Stop."}, "docvqa")["quality"] == {"anls": 0.8}
    assert score_answers(ten, {"1": "Stop."}, "mmmu")["quality"] == {"accuracy": 1, "unparsed": 0}
    assert set(metrics_for("answers")) == {"vqav2", "textvqa", "chartqa", "docvqa", "mmmu"}
    with pytest.raises(InputError, match="unknown metric 'docvq'; did you mean 'docvqa'"):
        score_answers(ten, {"1": "Stop."}, "docvq")


def test_scores_follow_the_questions_not_the_predictions():
    questions = [asked(str(i), str(i)) for i in range(1, 5)]
    predictions = [Prediction("4", "4"), Prediction("2", "9"), Prediction("1", "1"),
                   Prediction("3", "3.1")]  # fmt: skip
    assert score_answers(questions, predictions, "chartqa") == {
        "n": 4,
        "missing": 0,
        "quality": {"relaxed_accuracy": 0.75},
        "question_ids": ["1", "2", "3", "4"],
        "scores": [1, 0, 1, 1],
    }


def test_subjects_and_options_reach_the_metric():
    questions = [
        asked("1", "B", options=("x", "y"), subject="Art"),
        asked("2", "A", options=("x", "y"), subject="Art"),
        asked("3", "A", options=("x", "y"), subject="Math"),
    ]
    result = score_answers(questions, {"1": "(B)", "2": "B", "3": "x or y"}, "mmmu")
    expected = {"accuracy": 1 / 3, "accuracy/Art": 0.5, "accuracy/Math": 0, "unparsed": 1 / 3}
    assert result["quality"] == pytest.approx(expected, abs=1e-12)


def test_missing_predictions_are_refused_unless_partial():
    questions = [asked(str(i), "x") for i in range(1, 4)]
    with pytest.raises(InputError) as caught:
        score_answers(questions, {"2": "x"}, "docvqa")
    assert str(caught.value).startswith("q.jsonl, line 1: no prediction for question 1 (2 of 3 ")
    result = score_answers(questions, {"2": "x"}, "docvqa", partial=True)
    assert (result["n"], result["missing"]) == (1, 2)
    assert (result["question_ids"], result["scores"]) == (["2"], [1])
    assert result["quality"] == {"anls": 1}
    with pytest.raises(InputError, match="at least one scored question"):
        score_answers(questions, {}, "docvqa", partial=True)


@pytest.mark.parametrize("partial", [False, True])
def test_unknown_and_double_predictions(partial):
    questions = [asked("1", "x")]
    unknown = [Prediction("1", "x"), Prediction("9", "x", "p.jsonl, line 2")]
    said = (
        r"^p\.jsonl, line 2: there is no question 9; ids here are such as 1; docvqa's own are the"
    )
    with pytest.raises(InputError, match=said):
        score_answers(questions, unknown, "docvqa", partial)
    twice = [Prediction("1", "x"), Prediction("1", "x", "p.jsonl, line 2")]
    with pytest.raises(InputError, match=r"^p\.jsonl, line 2: question 1 is answered already$"):
        score_answers(questions, twice, "docvqa", partial)


def test_the_form_of_ids_is_said():
    """ChartQA's data has none: they are made of the file's name and the place in it."""
    questions = [replace(asked("1", "x"), id="test_human-0")]
    for predictions in ({"0": "x"}, {}):
        with pytest.raises(InputError, match="FILESTEM-INDEX") as caught:
            score_answers(questions, predictions, "chartqa")
        assert "such as test_human-0" in str(caught.value)
        assert "\n" not in str(caught.value)


def test_what_can_not_be_scored_names_the_question():
    for question, metric, problem in (
        (asked("1"), "docvqa", "no reference answer"),
        (asked("1", "yes"), "vqav2", "at least 4 reference answers, got 1"),
        (asked("1", "F", options=("x", "y")), "mmmu", "'F' is none of the options A to B"),
    ):
        with pytest.raises(InputError, match=rf"^q\.jsonl, line 1: .*{problem}"):
            score_answers([question], {"1": "x"}, metric)


def test_from_files(tmp_path):
    lines = [{"question_id": i, "question": "?", "answers": ["red", "dark red"]} for i in range(2)]
    said = [{"question_id": 1, "answer": "Dark  red"}, {"question_id": 0, "answer": "reds"}]
    for name, entries in (("q", lines), ("p", said)):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, entries)))
    questions = read_questions(tmp_path / "q.jsonl")
    result = score_answers(questions, read_predictions(tmp_path / "p.jsonl"), "docvqa")
    assert result["scores"] == [0.75, 1]
