"""Relaxed accuracy case by case, and against exact arithmetic."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mmspec.eval.metrics.relaxed_accuracy import CHARTQA, relaxed_accuracy

CASES = [
    # answer, prediction, right
    ("100", "100", True),
    ("100", "105", True),
    ("100", "95", True),
    ("100", "105.01", False),
    ("100", "94.99", False),
    ("1", "1.05", True),  # at the bound: rounding must not decide
    ("2", "2.1", True),
    ("2", "1.9", True),
    ("0.3", "0.285", True),
    ("-40", "-41", True),
    ("-40", "40", False),
    ("-40", "-42.5", False),
    ("1e3", "1020", True),
    (" 14 ", "14.0\n", True),
    # percent signs
    ("12%", "12%", True),
    ("12%", "12.5 %", True),
    ("12%", "0.12", True),
    ("0.12", "12%", True),
    ("12%", "12", False),
    ("12", "12%", False),
    ("50%", "53%", False),
    # zero: only zero is within 5 % of it
    ("0", "0", True),
    ("0", "0.0", True),
    ("0", "-0", True),
    ("0%", "0", True),
    ("0", "0.001", False),
    ("0", "no", False),
    ("0.001", "0", False),
    # words
    ("Yes", "yes", True),
    ("Yes", " YES ", True),
    ("Yes", "yes.", False),
    ("light blue", "blue", False),
    ("2019", "year 2019", False),
    ("", "", True),
    # text, not numbers
    ("1,000", "1,000", True),
    ("1,000", "1000", False),
    ("$5", "5", False),
    ("nan", "NaN", True),
    ("inf", "-inf", False),
    ("1_0", "10", False),
    ("%", "%", True),
]


@pytest.mark.parametrize(("answer", "prediction", "right"), CASES)
def test_cases(answer, prediction, right):
    assert relaxed_accuracy(prediction, answer) == right


@given(st.decimals(-1000, 1000, places=3), st.decimals(-1000, 1000, places=3))
def test_equals_exact_arithmetic(prediction, answer):
    exact = abs(Fraction(prediction) - Fraction(answer)) <= abs(Fraction(answer)) / 20
    assert relaxed_accuracy(str(prediction), str(answer)) == exact


@given(st.decimals(-100, 100, places=2), st.integers(-8, 8))
def test_near_the_bound(answer, percent):
    assume(answer != 0)
    prediction = Fraction(answer) * (100 + percent) / 100
    text = f"{float(prediction):.4f}"  # exact: two places of the answer, two of the percentage
    assert Fraction(text) == prediction
    assert relaxed_accuracy(text, str(answer)) == (abs(percent) <= 5)


def test_the_best_of_several_answers_counts():
    metric = CHARTQA.metric()
    metric.update("10.2", "10", subject="human")
    metric.update("blue", ["10", "Blue"], subject="human")
    metric.update("red", ["blue", "green"], subject="augmented")
    assert metric.scores == [1, 1, 0]
    assert metric.compute() == {
        "relaxed_accuracy": pytest.approx(2 / 3, abs=1e-12),
        "relaxed_accuracy/augmented": 0,
        "relaxed_accuracy/human": 1,
    }
    assert relaxed_accuracy("10.2", "10", tolerance=0.01) == 0
