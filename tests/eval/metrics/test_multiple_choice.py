"""Which option a response chooses, case by case, and MMMU's open questions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmspec.errors import InputError
from mmspec.eval.metrics.multiple_choice import (
    MultipleChoiceAccuracy,
    open_answer_correct,
    parse_choice,
)

COLORS = ["red", "dark red", "blue", "Light green"]
PARSED = [
    # nothing but a letter
    ("B", "B"),
    ("b", "B"),
    (" (c) ", "C"),
    ("D.", "D"),
    ("**A**", "A"),
    ("[B]", "B"),
    # nothing but an option's text
    ("red", "A"),
    ("Dark red.", "B"),
    ("light  green", "D"),
    # declared
    ("The answer is B", "B"),
    ("The answer is (B), not (A).", "B"),
    ("**Answer:** C", "C"),
    ("Answer: option D", "D"),
    ("(A) and (B) are too dark. Therefore the answer is C.", "C"),
    ("the correct answer is A because of the hue", "A"),
    # in brackets
    ("I think it is (C) here", "C"),
    ("Hence \\boxed{D}", "D"),
    ("(B) is right, since A is too bright", "B"),
    # named
    ("I would take option A here", "A"),
    ("So choice B is best", "B"),
    # at the front of a line
    ("B. dark red", "B"),
    ("Let us see.\nC) blue", "C"),
    ("D: Light green", "D"),
    # a capital letter as a word
    ("It must be B", "B"),
    ("A is right", "A"),
    ("A cat is shown, so B", "B"),
    # an option's text as words
    ("it is dark red", "B"),
    ("The car looks blue to me", "C"),
    ("surely LIGHT GREEN", "D"),
]
REJECTED = [
    ("Option B is wrong, so C", "C"),
    ("B is wrong, so C", "C"),
    ("(B) is clearly incorrect. C", "C"),
    ("not A but C", "C"),
    ("It is not (A), it is (C)", "C"),
    ("It isn't A, it's C", "C"),
    ("The answer is not B but D", "D"),
    ("The answer is not B.", None),
    ("B, not A", "B"),
    ("B rather than A", "B"),
    ("Instead of A, I choose B", "B"),
    ("Neither A nor B, so D", "D"),
    ("It can't be A. C", "C"),
    ("It cannot be option A or B; C fits", "C"),
    ("A can't be right, so D", "D"),
    ("A doesn't fit and B does not either: C", "C"),
    ("We can rule out A and B. That leaves D", "D"),
    ("Eliminating (A), (B) and (D), we have (C)", "C"),
    ("A, B and D are wrong; C", "C"),
    ("A: wrong\nB: wrong\nC fits\nD: wrong", "C"),
    ("The wrong answers are A, B and D. C it is", "C"),
    ("Option A looks good at first, but A is wrong. So D", "D"),
    ("Option A is correct and B is not.", "A"),
    ("The answer is C, and B is wrong", "C"),
    ("The answer is C, A and B are wrong", "C"),
    ("C is right; A seems wrong", "C"),
    ("A is not wrong", "A"),
    ("Option A can't be excluded", "A"),
    ("B is not only brighter but the one", "B"),
    ("not dark red but blue", "C"),
    ("It is not red, it is dark red", "B"),
    ("It may look red, but red is wrong: blue", "C"),
    ("red is wrong", None),
    ("A, B, C and D are all wrong", None),
]
UNPARSED = [
    "",
    "...",
    "I do not know",
    "A cat is shown",
    "E",
    "The answer is E",
    "B or C",
    "A or B",
    "A and B are both right",
    "(A) (B)",
    "The answer is A. No, the answer is B.",
    "red or blue",
    "reddish",
    "blue-green",
    "bluebird",
    "AB",
    "a dog",
]


@pytest.mark.parametrize(("response", "letter"), PARSED)
def test_parsed(response, letter):
    assert parse_choice(response, COLORS) == letter


@pytest.mark.parametrize(("response", "letter"), REJECTED)
def test_rejected_options_are_not_chosen(response, letter):
    assert parse_choice(response, COLORS) == letter


def test_a_not_of_an_options_own_text_rejects_nothing():
    options = ["a mammal", "not a mammal", "a bird"]
    assert parse_choice("The bat is a mammal", options) == "A"
    assert parse_choice("The crow is not a mammal", options) == "B"
    assert parse_choice("It is not a bird. It is a mammal", options) == "A"
    assert parse_choice("not a mammal", options) == "B"


@pytest.mark.parametrize("response", UNPARSED)
def test_unparsed(response):
    assert parse_choice(response, COLORS) is None


def test_numbers_as_options():
    options = ["1", "1.5", "-5", "12"]
    for response, letter in [
        ("1.5", "B"),
        ("about 1.5 m", "B"),
        ("x = -5", "C"),
        ("it is 12", "D"),
        ("1", "A"),
        ("it is 1.", "A"),
        ("it is 1.52", None),
        ("it is 1,200", None),
        ("it is 125", None),
        ("5", None),
    ]:
        assert parse_choice(response, options) == letter, response


def test_equal_texts_can_not_be_told_apart_and_ten_options_have_letters():
    assert parse_choice("red", ["red", "Red"]) is None
    assert parse_choice("B", ["red", "Red"]) == "B"
    ten = [f"option text {i}" for i in range(10)]
    assert parse_choice("J", ten) == "J"
    assert parse_choice("I think it is (C)", ten) == "C"
    assert parse_choice("I think it shows nothing", ten) is None
    assert parse_choice("A", []) is None
    assert parse_choice("anything", ["", ""]) is None


@given(st.text(max_size=30), st.lists(st.text(max_size=6), max_size=5))
def test_any_text_gives_a_letter_of_an_option_or_none(response, options):
    assert parse_choice(response, options) in {None, *"ABCDE"[: len(options)]}


@given(st.permutations(["red", "dark red", "blue", "green"]), st.integers(0, 3))
def test_the_letter_follows_the_order_of_the_options(options, index):
    assert parse_choice(f"I see {options[index]} here", options) == "ABCD"[index]


OPEN = [
    # answer, response, right
    ("5", "5", True),
    ("5", "5.0", True),
    ("5", "The answer is 5.", True),
    ("5", "x = 2 + 3 = 5 cm", True),
    ("5", "5cm", True),
    ("5", "15", False),
    ("5", "-5", False),
    ("-5", "t = -5", True),
    ("5", "from 3-5", True),
    ("5", "H5", False),
    ("1,200.50", "It is $1200.5", True),
    ("1200", "about 1,200 units", True),
    ("200", "about 1,200 units", False),
    ("0.333", "1/3 is 0.3351", False),
    ("0.333", "that is 0.33", True),  # two decimals, as in the official script
    ("1500", "1.5e3", True),
    ("5", "five", False),
    # what is looked at: the last clause of each sentence
    ("5", "There are 5 apples. The answer is 7.", False),
    ("7", "There are 5 apples. The answer is 7.", True),
    ("7", "The total is 7\nThus they share it", True),
    # text
    ("Paris", "paris", True),
    ("Paris", "The capital is Paris.", True),
    ("Paris", "The capital is Parish", False),
    ("b", "about", False),
    ("b", "it is b", True),
    ("transformer", "Not sure", False),
    ("", "anything", False),
]


@pytest.mark.parametrize(("answer", "response", "right"), OPEN)
def test_open_questions(answer, response, right):
    assert open_answer_correct(response, [answer]) == right


def test_any_answer_of_an_open_question_will_do():
    assert open_answer_correct("it is 24/7", ["3.429", "24/7"])
    assert open_answer_correct("3.43", ["24/7", "3.429"])


def test_class_counts_what_it_can_not_parse_as_wrong():
    metric = MultipleChoiceAccuracy()
    metric.update("(B)", "B", COLORS, "Art")
    metric.update("A or B", "B", COLORS, "Art")
    metric.update("C", ["A", "C"], COLORS, "Art")
    metric.update("it is blue", "blue", COLORS, "Physics")  # the answer as the option's text
    metric.update("dunno", "red", COLORS, "Physics")
    metric.update("the result is 3", "3", subject="Physics")
    metric.update("nothing", "3", subject="Physics")  # open: wrong, but nothing to parse
    assert metric.scores == [1, 0, 1, 1, 0, 1, 0]
    assert metric.unparsed == 2
    expected = {"accuracy": 4 / 7, "accuracy/Art": 2 / 3, "accuracy/Physics": 1 / 2}
    assert metric.compute() == pytest.approx({**expected, "unparsed": 2 / 7}, abs=1e-12)
    metric.reset()
    assert metric.unparsed == 0


@pytest.mark.parametrize(
    ("answer", "options", "problem"),
    [
        ("E", COLORS, "'E' is none of the options A to D"),
        ("pink", COLORS, "'pink' is none of"),
        ("same", ["same", "same"], "'same' is none of"),
        ("", COLORS, "'' is none of"),
        ("A", ["x"] * 27, "at most 26 options, not 27"),
    ],
)
def test_an_answer_that_is_no_option(answer, options, problem):
    metric = MultipleChoiceAccuracy()
    with pytest.raises(InputError, match=problem):
        metric.update("nothing said", answer, options)
    assert metric.scores == []
    assert metric.unparsed == 0
