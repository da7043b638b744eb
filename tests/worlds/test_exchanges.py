"""Questions of the shapes world: true by an independent reader of the picture, and held apart."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest

import mmspec.assets
from mmspec.errors import InputError
from mmspec.worlds.shapes.charts import Chart, held_out_value
from mmspec.worlds.shapes.detector import detect
from mmspec.worlds.shapes.exchanges import (
    KINDS,
    LONG_KINDS,
    SHORT_KINDS,
    HeldOut,
    accuracy_by_kind,
    draw,
    held_out_descriptions,
    held_out_questions,
    is_correct,
    normalize,
    sample_exchange,
)
from mmspec.worlds.shapes.questions import SCENE_KINDS
from mmspec.worlds.shapes.render import render
from mmspec.worlds.shapes.scene import sample_mixed, shows_unseen
from mmspec.worlds.shapes.scoring import relations
from mmspec.worlds.shapes.vocabulary import (
    COLORS,
    SHAPES,
    held_out_color,
    held_out_count,
    held_out_pair,
    held_out_relation,
)

# the reader's own dictionary
NOUNS = {
    **{shape: shape for shape in SHAPES},
    "disc": "circle",
    "box": "square",
    "plus": "cross",
    "hoop": "ring",
    "crosses": "cross",
    **{shape + "s": shape for shape in SHAPES},
}
ASKING = ("single_object", "two_object", "yes_no")
PROMPTS = Path(mmspec.assets.__path__[0]) / "prompts"


def words_of(text):
    return re.findall(r"\w+", text.lower())


def named(text):
    """Shapes and colours in a text, in order."""
    words = words_of(text)
    return [NOUNS[w] for w in words if w in NOUNS], [w for w in words if w in COLORS]


@pytest.fixture(scope="module")
def exchanges():
    """Of every kind, in both splits."""
    rng = np.random.default_rng(5)
    return {
        (kind, split): [sample_exchange(rng, kind, split) for _ in range(25)]
        for kind in KINDS
        for split in ("train", "held_out")
    }


def centre(hit):
    x0, y0, x1, y1 = hit.box
    return (x0 + x1) / 2, (y0 + y1) / 2


def read_answer(kind, question, hits):
    """The answer of one who sees the detector's objects and reads GenEval's six kinds."""
    shapes, colors = named(question)
    if kind in ("single_object", "two_object"):
        return "yes" if {hit.shape for hit in hits} >= set(shapes) else "no"
    if kind == "counting":
        fits = [h for h in hits if (not shapes or h.shape in shapes)]
        return str(sum(not colors or h.color in colors for h in fits))
    if kind == "colors":
        return next(h.color for h in hits if h.shape == shapes[0])
    if kind == "color_attr":
        return " and ".join(next(h.color for h in hits if h.shape == shape) for shape in shapes)
    raise AssertionError(kind)


@pytest.mark.parametrize(
    "kind", ["single_object", "two_object", "counting", "colors", "color_attr"]
)
def test_answers_are_what_the_detector_sees(exchanges, kind):
    pairs = exchanges[kind, "train"] + exchanges[kind, "held_out"]
    agree = 0
    for scene, exchange in pairs:
        hits = detect(draw(scene))
        if Counter((h.shape, h.color) for h in hits) != Counter(
            (i.shape, i.color) for i in scene.items
        ):
            continue  # the detector's own misses are tested below
        agree += 1
        assert read_answer(kind, exchange.question, hits) == exchange.answer, exchange
    assert agree >= 0.95 * len(pairs)


def test_positions_are_geneval_s(exchanges):
    """Where one stands of the other, by boxes and GenEval's rule."""
    names = {"left": "left of", "right": "right of", "above": "above", "below": "below"}
    for scene, exchange in exchanges["position", "train"] + exchanges["position", "held_out"]:
        words = words_of(exchange.question)
        mentions = []
        for place, word in enumerate(words):
            if word in NOUNS:
                color = words[place - 1] if words[place - 1] in COLORS else None
                [item] = [
                    i for i in scene.items if i.shape == NOUNS[word] and color in (None, i.color)
                ]
                mentions.append(item)
        one, other = mentions if words[0] == "where" else mentions[::-1]
        boxes = [
            (i.x - i.size / 2, i.y - i.size / 2, i.x + i.size / 2, i.y + i.size / 2)
            for i in (one, other)
        ]
        assert names[exchange.answer] in relations(*boxes), exchange


def test_mixed_scenes_are_plain_to_see():
    """The detector finds every object of nearly every scene."""
    rng = np.random.default_rng(1)
    right = 0
    for number in range(100):
        scene = sample_mixed(rng, ("train", "held_out")[number % 2])
        seen = Counter((hit.shape, hit.color) for hit in detect(render(scene)))
        right += seen == Counter((item.shape, item.color) for item in scene.items)
    assert right >= 98


def test_splits(exchanges):
    """A training picture shows nothing that is held out, a held-out one always something."""
    for (_, split), pairs in exchanges.items():
        for picture, _ in pairs:
            if isinstance(picture, Chart):
                pairs_of = zip(picture.labels, picture.values, strict=True)
                unseen = any(held_out_value(*pair) for pair in pairs_of)
            else:
                shapes = Counter(item.shape for item in picture.items)
                unseen = any(held_out_color(item.shape, item.color) for item in picture.items)
                unseen |= any(held_out_count(shape, n) for shape, n in shapes.items())
                unseen |= any(held_out_pair(a, b) for a in shapes for b in shapes)
                assert shows_unseen(picture.items) == unseen
            assert unseen == (split == "held_out")


RELATING = re.compile(
    rf"\b({'|'.join(NOUNS)})(?: shape| sign| moon)?(?: \w+){{0,2}}?"
    r" (to the left of|left of|further left than|to the right of|right of|further right than"
    r"|above|over|higher up than|below|under|beneath|lower down than) the (?:(\w+) )?(\w+)"
)


def stated(text):
    """Colour and shape where they stand together, and relations in the plain order of words."""
    kinds, found = [], []
    for sentence in re.split(r"[.?:]", text):
        words = words_of(sentence)
        for color, noun in itertools.pairwise(words):
            if color in COLORS and noun in NOUNS:
                kinds.append((NOUNS[noun], color))
        for one, name, first, second in RELATING.findall(" ".join(words)):
            other = second if second in NOUNS else first
            if one in NOUNS and other in NOUNS:
                side = next((word for word in ("left", "right") if word in name), None)
                up = "above" if name in ("above", "over", "higher up than") else "below"
                found.append((NOUNS[one], f"{side} of" if side else up, NOUNS[other]))
    return kinds, found


def test_training_texts_state_nothing_held_out():
    rng = np.random.default_rng(8)
    seen = Counter()
    for kind in (*SCENE_KINDS, "description"):
        for _ in range(500 if kind == "description" else 100):
            _, exchange = sample_exchange(rng, kind, "train")
            for text in (exchange.question, exchange.answer):
                kinds, relations_ = stated(text)
                seen["kinds"] += len(kinds)
                seen["relations"] += len(relations_)
                assert not any(held_out_color(*pair) for pair in kinds), text
                assert not any(held_out_relation(*said) for said in relations_), text
    assert seen["kinds"] > 500  # the reader reads
    assert seen["relations"] > 80


def test_held_out_questions_speak_of_what_is_unseen():
    """Most questions about the colour of one thing name a pair that training never shows."""
    rng = np.random.default_rng(2)
    names = 0
    for _ in range(100):
        _, exchange = sample_exchange(rng, "colors", "held_out")
        [shape], _ = named(exchange.question)
        names += held_out_color(shape, exchange.answer)
    assert names >= 60


@pytest.mark.parametrize("kind", SHORT_KINDS)
def test_yes_and_no_are_balanced(kind):
    rng = np.random.default_rng(9)
    answers = Counter(sample_exchange(rng, kind, "train")[1].answer for _ in range(300))
    total = answers["yes"] + answers["no"]
    if kind in ASKING:
        assert total == 300
    if total:
        assert abs(answers["yes"] - answers["no"]) < 4.5 * total**0.5, answers  # 4.5 deviations


def test_same_seed_same_exchange():
    for kind in KINDS:
        one, other = (sample_exchange(np.random.default_rng([3, 4]), kind) for _ in range(2))
        assert one == other
        assert np.array_equal(draw(one[0]), draw(other[0]))


# --- answers ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("Red.", "red"),
        ("  the red ", "red"),
        ("three", "3"),
        ("There are 3", "3"),
        ("to the left of it", "left"),
        ("a plus sign", "cross"),
        ("disc", "circle"),
        ("red and blue", "red and blue"),
        ("under", "below"),
        (" On. ", "on"),
        ("A)", "A"),
        ("−5", "-5"),
        ("3-5", "3 5"),
    ],
)
def test_same_answers(answer, truth):
    assert is_correct(answer, truth)


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("", "red"),
        ("reddish", "red"),
        ("blue and red", "red and blue"),
        ("red", "red and blue"),
        ("4", "3"),
        ("no", "yes"),
        ("red red", "red"),
        ("", "on"),
        ("in", "on"),
        ("5", "-5"),
    ],
)
def test_other_answers(answer, truth):
    assert not is_correct(answer, truth)


def test_truth_is_right_and_another_answer_wrong(exchanges):
    for (kind, _), pairs in exchanges.items():
        if kind in LONG_KINDS:
            continue
        answers = [exchange.answer for _, exchange in pairs]
        for answer in answers:
            assert is_correct(answer, answer)
            assert normalize(answer)
        for one in set(answers):
            assert not any(is_correct(one, other) for other in set(answers) - {one})


def test_accuracy_by_kind():
    graded = [("a", True), ("b", False), ("a", False), ("a", True)]
    assert accuracy_by_kind(graded) == pytest.approx({"a": 2 / 3, "b": 0.0})


# --- the fixed lists --------------------------------------------------------------------------


def stored(name):
    return [json.loads(line) for line in (PROMPTS / name).read_text().splitlines()]


def test_questions_file_is_what_the_function_makes():
    lines = list(held_out_questions(55))
    assert stored("vlm-questions.jsonl") == [line.line() for line in lines]
    assert len(lines) == 605
    assert len({line.id for line in lines}) == 605
    counts = Counter(line.kind for line in lines)
    assert set(counts) == set(SHORT_KINDS)
    asked = defaultdict(Counter)
    for line in lines:
        asked[line.kind][line.answer] += 1
    # no kind is won by always saying the same
    assert all(max(answers.values()) / 55 < 0.7 for answers in asked.values())


def test_descriptions_file_is_what_the_function_makes():
    lines = list(held_out_descriptions(100))
    assert stored("vlm-descriptions.jsonl") == [line.line() for line in lines]
    assert Counter(line.kind for line in lines) == {"description": 75, "chart_description": 25}


def test_a_line_gives_its_picture_again():
    line = next(iter(held_out_questions(1)))
    assert (
        line.picture()
        == sample_exchange(np.random.default_rng(line.seed), line.kind, "held_out")[0]
    )
    assert line.is_right(line.answer)
    changed = HeldOut(**{**vars(line), "answer": "blue"})
    with pytest.raises(InputError, match="another version"):
        changed.picture()
