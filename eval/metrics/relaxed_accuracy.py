"""Relaxed accuracy: numbers read off a chart may be 5 % off, words may not.

Masry et al. 2022, "ChartQA", section 5.1, after Methani et al. 2020 (PlotQA).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .answer_metric import AnswerBenchmark, mean_of


def relaxed_accuracy(
    prediction: str, answers: str | Sequence[str], tolerance: float = 0.05
) -> float:
    """1 if the prediction is right by any of the answers, else 0.

    Two numbers match if `|prediction − answer| ≤ tolerance · |answer|`; anything else matches if
    it is equal but for case and outer blanks. `12%` is the number 0.12. Numbers are what `float`
    reads, so `1,000` and `$5` are text, as in the usual script of pix2struct.

    That script compares an answer of 0 as text; here the formula holds for it too, so that `0.0`
    and `0%` match `0` and nothing else does.
    """
    answers = (answers,) if isinstance(answers, str) else answers
    return float(any(_matches(prediction, answer, tolerance) for answer in answers))


def _matches(prediction: str, answer: str, tolerance: float) -> bool:
    said, true = _number(prediction), _number(answer)
    if said is None or true is None:
        return prediction.strip().lower() == answer.strip().lower()
    # the last factor keeps what is exactly at the bound (1.05 for 1) from failing by rounding
    return abs(said - true) <= tolerance * abs(true) * (1 + 1e-9)


CHARTQA = AnswerBenchmark(
    name="chartqa",
    summary="relaxed accuracy of answers: numbers may be 5 % off",
    metric=mean_of("relaxed_accuracy", relaxed_accuracy),
    reader="mmspec.eval.data.answers:read_chartqa",
    ids="FILESTEM-INDEX, the questions' file without its suffix and the place in it from 0",
)


def _number(text: str) -> float | None:
    text = text.strip()
    percent = text.endswith("%")
    try:
        value = float(text[:-1] if percent else text)
    except ValueError:
        return None
    if "_" in text or not math.isfinite(value):  # `float` reads 1_000, nan and infinity
        return None
    return value / 100 if percent else value
