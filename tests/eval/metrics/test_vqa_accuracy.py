"""VQA soft accuracy against leave-one-out as the formula says it; normalization case by case."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmspec.errors import InputError
from mmspec.eval.metrics import vqa_accuracy as vqa
from mmspec.eval.metrics.vqa_accuracy import (
    normalize_textvqa,
    normalize_vqav2,
    vqa_accuracy,
)

WORDS = st.sampled_from(["yes", "no", "2", "red", "dark red"])


def leave_one_out(prediction: str, answers: list[str]) -> float:
    """Mean over every set of all annotators but one of min(1, matches in it / 3)."""
    subsets = list(combinations(answers, len(answers) - 1))
    return sum(min(1, subset.count(prediction) / 3) for subset in subsets) / len(subsets)


@given(WORDS, st.lists(WORDS, min_size=4, max_size=12))
def test_equals_leave_one_out(prediction, answers):
    score = vqa_accuracy(prediction, answers)
    assert score == pytest.approx(leave_one_out(prediction, answers), abs=1e-12)
    assert 0 <= score <= 1


@pytest.mark.parametrize("matches", range(11))
def test_ten_annotators_have_a_closed_form(matches):
    # with k of 10: k leave one match out, (k·min(1, (k-1)/3) + (10-k)·min(1, k/3)) / 10
    answers = ["cat"] * matches + ["dog"] * (10 - matches)
    assert vqa_accuracy("cat", answers) == pytest.approx(min(1, 0.3 * matches), abs=1e-12)


@given(st.data(), st.text(max_size=8), st.lists(st.text(max_size=8), min_size=4, max_size=8))
def test_annotators_have_no_order(data, prediction, answers):
    shuffled = data.draw(st.permutations(answers))
    for normalize in (normalize_vqav2, normalize_textvqa):
        score = vqa_accuracy(prediction, answers, normalize)
        assert score == vqa_accuracy(prediction, shuffled, normalize)
        assert 0 <= score <= 1


@pytest.mark.parametrize("count", range(4))
def test_too_few_annotators_are_refused(count):
    with pytest.raises(InputError, match=f"at least 4 reference answers, got {count}"):
        vqa_accuracy("yes", ["yes"] * count)


def test_unanimous_answers_are_compared_as_written_unless_asked():
    unanimous, split = ["yes"] * 10, ["yes"] * 9 + ["no"]
    assert vqa_accuracy(" yes\n", unanimous) == 1
    for said in ("Yes", "yes.", "yes!", "a yes"):
        assert vqa_accuracy(said, unanimous) == 0
        assert vqa_accuracy(said, split) == 1
        assert vqa_accuracy(said, unanimous, normalize_unanimous=True) == 1
    # the rule it is for: what is read from the picture stays as it is
    assert vqa_accuracy("The One", ["The One"] * 10) == 1
    assert vqa_accuracy("1", ["The One"] * 10) == 0
    assert vqa_accuracy("1", ["The One"] * 9 + ["2"]) == 1
    assert vqa_accuracy("a", ["yes\n", " yes", "yes", "yes\t"]) == 0  # unanimous but for blanks


COMMON = {
    # case, blanks
    "Yes": "yes",
    "  dark \n\t red ": "dark red",
    "": "",
    # number words, up to ten
    "none": "0",
    "Zero": "0",
    "one": "1",
    "two": "2",
    "three": "3",
    "four": "4",
    "five": "5",
    "six": "6",
    "seven": "7",
    "eight": "8",
    "nine": "9",
    "ten": "10",
    "eleven": "eleven",
    "one two": "1 2",
    "someone": "someone",
    # articles
    "a cat": "cat",
    "An apple": "apple",
    "the": "",
    "on the left": "on left",
    "theme": "theme",
    # marks: to a blank, or to nothing beside a blank
    "black/white": "black white",
    "black / white": "black white",
    "t-shirt": "t shirt",
    "t- shirt": "t shirt",
    "no!": "no",
    "wow!!": "wow",
    '"stop"': "stop",
    "[left] {right} (up)": "left right up",
    "left(up) ": "left up",
    "a_b": "b",
    "x=y+z": "x y z",
    "me@home": "me home",
    "back\\slash": "back slash",
    "`x`": "x",
    "<b>": "b",
    "red;blue": "red blue",
    "one-way": "1 way",
    # marks that stay
    "10:30": "10:30",
    "50%": "50%",
    "$5": "$5",
    "salt & pepper": "salt & pepper",
    # full stops
    "yes.": "yes",
    "1.5": "1.5",
    "1.": "1",
    ".5": ".5",
    "u.s.a.": "usa",
    "wait...": "wait",
    "v1.2.x": "v1.2x",
    # contractions
    "dont": "don't",
    "Isnt": "isn't",
    "couldnt've": "couldn't've",
    "couldn'tve": "couldn't've",
    "couldntve": "couldntve",
    "wont": "won't",
    "oclock": "o'clock",
    "5 oclock": "5 o'clock",
    "twas": "'twas",
    "yall'll": "y'all'll",
    "y'allll": "y'all'll",
    "youre": "you're",
    "theyve": "they've",
    "somebody'd": "somebodyd",
    "maam": "ma'am",
    # words that need no apostrophe
    "its": "its",
    "well": "well",
    "shed": "shed",
    "lets": "lets",
    "ill": "ill",
    "im": "im",
}
VQAV2 = {
    # a comma: to nothing between digits, and then no mark leaves a blank
    "1,000": "1000",
    "1,000-2,000": "10002000",
    "t-shirt 1,5": "tshirt 15",
    "red,blue": "red blue",
    "red, blue": "red blue",
    "why?not": "why not",
    "why? not": "why not",
    # a mark goes without a blank everywhere if it is beside a blank anywhere
    "t-shirt - red": "tshirt red",
    "a,b, c": "ab c",
    # possessives
    "joe's": "joe's",
    "let's": "let's",
}
TEXTVQA = {
    "1,000": "1000",
    "1,000-2,000": "1000 2000",
    "t-shirt 1,5": "t shirt 15",
    "red,blue": "redblue",
    "red, blue": "red blue",
    "why?not": "whynot",
    "t-shirt - red": "tshirt red",
    "a,b, c": "ab c",
    "joe's": "joe 's",
    "Joe'S bar": "joe 's bar",
    "let's": "let 's",
}


@pytest.mark.parametrize(("answer", "expected"), (COMMON | VQAV2).items())
def test_vqav2_normalization(answer, expected):
    assert normalize_vqav2(answer) == expected


@pytest.mark.parametrize(("answer", "expected"), (COMMON | TEXTVQA).items())
def test_textvqa_normalization(answer, expected):
    assert normalize_textvqa(answer) == expected


@given(st.text("abN 1.,;'-/!\n\t", max_size=12))
def test_normalized_answers_hold_no_marks_articles_or_stray_blanks(answer):
    for text in (normalize_vqav2(answer), normalize_textvqa(answer)):
        assert text == text.lower() == " ".join(text.split())
        assert not set(text) & set(",;-/!\n\t")
        assert not {"a", "an", "the"} & set(text.split())


def test_means_by_subject_and_the_benchmark_that_is_meant():
    metric = vqa.VQAV2.metric()
    metric.update("yes", ["yes"] * 10, subject="yes/no")
    metric.update("2", ["two"] * 2 + ["3"] * 8, subject="number")
    metric.update("red,blue", ["redblue"] * 9 + ["red"])
    assert metric.scores == pytest.approx([1, 0.6, 0], abs=1e-12)
    expected = {
        "vqa_accuracy": 1.6 / 3,
        "vqa_accuracy/number": 0.6,
        "vqa_accuracy/yes/no": 1,
    }
    assert metric.compute() == pytest.approx(expected, abs=1e-12)

    textvqa = vqa.TEXTVQA.metric()
    textvqa.update("red,blue", ["redblue"] * 9 + ["red"])
    textvqa.update("Stop!", ["stop"] * 10)
    assert textvqa.scores == [1, 1]


def test_a_question_that_fails_leaves_no_trace_and_reset_forgets():
    metric = vqa.VQAV2.metric()
    metric.update("yes", ["yes"] * 4)
    for answers in ([], ["yes"], "yes"):
        with pytest.raises(InputError):
            metric.update("yes", answers)
    assert metric.scores == [1]
    metric.scores.append(0.0)  # a copy
    assert metric.compute() == {"vqa_accuracy": 1}
    metric.reset()
    assert metric.scores == []
    with pytest.raises(InputError, match="at least one scored question"):
        metric.compute()
