"""ANLS against the recursive definition."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmspec.eval.metrics.anls import DOCVQA, anls

SHORT = st.text("abB 1", max_size=7)


@cache
def recursive(a: str, b: str) -> int:
    """The definition, from the front: drop a letter of either, or of both."""
    if not a or not b:
        return len(a) + len(b)
    both = recursive(a[1:], b[1:])
    return both if a[0] == b[0] else 1 + min(both, recursive(a[1:], b), recursive(a, b[1:]))


@given(SHORT, st.lists(SHORT, min_size=1, max_size=3), st.sampled_from([0.0, 0.25, 0.5, 0.8]))
def test_equals_the_formula(prediction, answers, threshold):
    def similarity(answer: str) -> float:
        a, b = (" ".join(text.lower().split()) for text in (prediction, answer))
        value = 1 - recursive(a, b) / max(len(a), len(b)) if a or b else 1.0
        return value if value >= threshold else 0.0

    score = anls(prediction, answers, threshold)
    assert score == max(map(similarity, answers))
    assert score == 0 or threshold <= score <= 1


@given(SHORT, SHORT)
def test_is_symmetric_and_1_only_for_the_same_words(a, b):
    assert anls(a, b) == anls(b, a)
    assert (anls(a, b) == 1) == (a.lower().split() == b.lower().split())


@pytest.mark.parametrize(
    ("prediction", "answers", "score"),
    [
        ("ITC Limited", ["itc limited"], 1.0),
        (" itc \n limited ", ["ITC Limited"], 1.0),
        ("abcd", ["abxx"], 0.5),  # exactly at the threshold stays
        ("abcde", ["abxxx"], 0.0),  # 0.4
        ("1/8/93", ["1/8/98", "Jan 8"], 5 / 6),
        ("jan 8", ["1/8/98", "Jan 8"], 1.0),
        ("ab cd", ["ba cd"], 0.6),  # no transpositions
        ("résumé", ["resume"], 4 / 6),
        ("", ["x"], 0.0),
        ("", [""], 1.0),
        ("x" * 100_000, ["no"], 0.0),  # by length alone
    ],
)
def test_cases(prediction, answers, score):
    assert anls(prediction, answers) == pytest.approx(score, abs=1e-12)


def test_class_accumulates():
    metric = DOCVQA.metric()
    metric.update("abcd", ["abcx", "zzzz"])
    metric.update("abcd", "zzzz")
    assert metric.scores == [0.75, 0]
    assert metric.compute() == {"anls": 0.375}
    assert anls("abcd", "axxx", threshold=0.2) == 0.25
