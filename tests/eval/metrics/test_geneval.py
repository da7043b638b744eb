"""GenEval's scoring rules on hand-made detections; positions against a slow second reading."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mmspec.errors import InputError
from mmspec.eval.metrics.geneval import geneval_scores
from mmspec.worlds.shapes.detector import Detection
from mmspec.worlds.shapes.scoring import relations, score_prompt
from mmspec.worlds.shapes.vocabulary import RELATIONS, TASKS

Box = tuple[float, float, float, float]


def hit(shape: str, color: str = "red", at: Box = (0, 0, 10, 10), confidence: float = 1.0):
    return Detection(shape, color, at, confidence)


def around(x: float, y: float, width: float = 10, height: float = 10) -> Box:
    return (x - width / 2, y - height / 2, x + width / 2, y + height / 2)


def counting(count: int) -> dict:
    return {
        "tag": "counting",
        "include": [{"class": "star", "count": count}],
        "exclude": [{"class": "star", "count": count + 1}],
    }


def beside(relation: str, **extra) -> dict:
    return {
        "tag": "position",
        "include": [
            {"class": "ring", "count": 1},
            {"class": "star", "count": 1, "position": [relation, 0], **extra},
        ],
        "exclude": [],
    }


@pytest.mark.parametrize("seen", [0, 1, 2, 3, 4, 5])
def test_counting_wants_the_exact_number(seen):
    correct, reason = score_prompt(counting(3), [hit("star")] * seen + [hit("ring")])
    assert correct == (seen == 3)
    assert (reason == "") == correct


def test_surplus_fails_only_where_exclude_says_so():
    single = {"tag": "single_object", "include": [{"class": "star", "count": 1}]}
    assert score_prompt(single, [hit("star"), hit("star"), hit("ring")])[0]
    assert not score_prompt(
        {**single, "exclude": [{"class": "ring", "count": 1}]},
        [
            hit("star"),
            hit("ring"),
        ],
    )[0]


def test_thresholds_differ_by_task_and_are_exclusive():
    stars = [hit("star", confidence=0.9)] * 2
    assert not score_prompt(counting(2), stars)[0]
    assert score_prompt(counting(2), stars, counting_threshold=0.89)[0]
    two = {"tag": "two_object", "include": [{"class": "star", "count": 2}]}
    assert score_prompt(two, stars)[0]
    assert not score_prompt(two, stars, threshold=0.9)[0]
    assert not score_prompt(two, [hit("star", confidence=0.3)] * 2)[0]


def test_color_is_asked_of_the_most_confident_object():
    prompt = {"tag": "colors", "include": [{"class": "star", "count": 1, "color": "red"}]}
    red, blue = hit("star", "red", confidence=0.8), hit("star", "blue", confidence=0.7)
    assert score_prompt(prompt, [blue, red])[0]
    assert not score_prompt(prompt, [blue])[0]
    brighter = hit("star", "blue", confidence=0.95)
    correct, reason = score_prompt(prompt, [red, brighter])
    assert not correct
    assert "blue" in reason


def test_color_attribution_may_not_be_swapped():
    prompt = {
        "tag": "color_attr",
        "include": [
            {"class": "star", "count": 1, "color": "red"},
            {"class": "ring", "count": 1, "color": "blue"},
        ],
    }
    assert score_prompt(prompt, [hit("ring", "blue"), hit("star", "red")])[0]
    assert not score_prompt(prompt, [hit("ring", "red"), hit("star", "blue")])[0]


@pytest.mark.parametrize("relation", RELATIONS)
def test_each_relation_holds_only_on_its_side(relation):
    step = {"left of": (-40, 3), "right of": (40, 3), "above": (3, -40), "below": (3, 40)}
    for side, (dx, dy) in step.items():
        star = hit("star", at=around(50 + dx, 50 + dy))
        assert score_prompt(beside(relation), [hit("ring", at=around(50, 50)), star])[0] == (
            side == relation
        )


@pytest.mark.parametrize(
    ("word", "sign", "axis"),
    [
        ("left of", -1, 0),
        ("right of", 1, 0),
        ("above", -1, 1),
        ("below", 1, 1),
    ],
)
def test_each_relation_at_its_threshold(word, sign, axis):
    # Boxes of side 10: 0.1 * (10 + 10) = 2 comes off. Straight ahead, (d - 2) / d > 0.5 at d > 4.
    def placed(along: float, aside: float = 0.0) -> set[str]:
        offset = (sign * along, aside) if axis == 0 else (aside, sign * along)
        return relations(around(*offset), around(0, 0))

    assert placed(4.001) == {word}
    assert placed(4.0) == set()
    assert placed(1.9) == set()
    # Aside too: (20 - 2) / hypot(20, w) > 0.5 up to w = sqrt(36^2 - 20^2)
    assert word in placed(20, math.sqrt(36**2 - 20**2) - 0.01)
    assert word not in placed(20, math.sqrt(36**2 - 20**2) + 0.01)


def test_larger_boxes_need_a_larger_offset():
    assert relations(around(0, 20), around(0, 0)) == {"below"}
    assert relations(around(0, 20, 10, 60), around(0, 0, 10, 60)) == set()
    assert relations(around(0, 20, 60, 10), around(0, 0, 60, 10)) == {"below"}


def test_diagonal_neighbours_have_two_relations_and_same_place_none():
    assert relations(around(-40, -40), around(0, 0)) == {"left of", "above"}
    assert relations(around(7, 7), around(7, 7)) == set()


def test_anchor_index_names_the_clause():
    ring, heart = hit("ring", at=around(20, 50)), hit("heart", at=around(80, 50))
    star = hit("star", at=around(50, 50))
    for anchor, expected in ((0, True), (1, False)):
        prompt = {
            "tag": "position",
            "include": [
                {"class": "ring", "count": 1},
                {"class": "heart", "count": 1},
                {"class": "star", "count": 1, "position": ["right of", anchor]},
            ],
        }
        assert score_prompt(prompt, [ring, heart, star])[0] == expected
    prompt["include"][2]["position"] = ["right of", 2]
    with pytest.raises(InputError, match="clause 2"):
        score_prompt(prompt, [ring, heart, star])


def test_a_failed_anchor_fails_the_position():
    star = hit("star", at=around(10, 50))
    correct, reason = score_prompt(beside("left of"), [star])
    assert not correct
    assert "no anchor" in reason
    prompt = beside("left of")
    prompt["include"][0]["color"] = "blue"
    correct, reason = score_prompt(prompt, [star, hit("ring", "red", around(90, 50))])
    assert not correct
    assert "no anchor" in reason
    assert score_prompt(prompt, [star, hit("ring", "blue", around(90, 50))])[0]


def test_position_holds_for_all_matched_objects():
    prompt = beside("left of", count=2)
    ring = hit("ring", at=around(60, 50))
    stars = [hit("star", at=around(x, 50), confidence=c) for x, c in ((10, 0.9), (30, 0.8))]
    assert score_prompt(prompt, [ring, *stars])[0]
    wrong = hit("star", at=around(95, 50), confidence=0.85)
    assert not score_prompt(prompt, [ring, *stars, wrong])[0]
    surplus = hit("star", at=around(95, 50), confidence=0.5)  # third by confidence: not asked
    assert score_prompt(prompt, [ring, *stars, surplus])[0]


def slow_relations(a: Box, b: Box) -> set[str]:
    """The published sentence, one scalar at a time."""
    dx = (a[0] + a[2]) / 2 - (b[0] + b[2]) / 2
    dy = (a[1] + a[3]) / 2 - (b[1] + b[3]) / 2
    far_x = max(abs(dx) - 0.1 * ((a[2] - a[0]) + (b[2] - b[0])), 0)
    far_y = max(abs(dy) - 0.1 * ((a[3] - a[1]) + (b[3] - b[1])), 0)
    words = set()
    if far_x > 0.5 * math.hypot(dx, dy):
        words.add("right of" if dx > 0 else "left of")
    if far_y > 0.5 * math.hypot(dx, dy):
        words.add("below" if dy > 0 else "above")
    return words


def near_threshold(a: Box, b: Box) -> bool:
    """Whether growing or shrinking both boxes by a hair changes the slow answer."""
    wider = [(box[0] - 1e-4, box[1] - 1e-4, box[2] + 1e-4, box[3] + 1e-4) for box in (a, b)]
    narrower = [(box[0] + 1e-4, box[1] + 1e-4, box[2] - 1e-4, box[3] - 1e-4) for box in (a, b)]
    return not slow_relations(*wider) == slow_relations(a, b) == slow_relations(*narrower)


boxes = st.tuples(*[st.floats(0, 100)] * 2, *[st.floats(1, 60)] * 2).map(
    lambda b: (b[0], b[1], b[0] + b[2], b[1] + b[3])
)


@settings(deadline=None)  # the first call may wait for a busy machine
@given(boxes, boxes)
def test_relations_agree_with_the_slow_reading(a, b):
    centre = [(a[i] + a[i + 2] - b[i] - b[i + 2]) / 2 for i in (0, 1)]
    assume(math.hypot(*centre) > 0.1 and not near_threshold(a, b))
    assert relations(a, b) == slow_relations(a, b)


@settings(deadline=None)
@given(boxes, boxes)
def test_relations_of_swapped_boxes_are_opposite(a, b):
    opposite = dict(zip(RELATIONS, ("right of", "left of", "below", "above"), strict=True))
    assert relations(b, a) == {opposite[word] for word in relations(a, b)}


def test_overall_is_the_mean_of_task_means_whatever_their_sizes():
    results = [("counting", True)] * 90 + [("counting", False)] * 10
    results += [(task, False) for task in TASKS if task != "counting"]
    scores = geneval_scores(results)
    assert scores["counting"] == pytest.approx(0.9)
    assert scores["overall"] == pytest.approx(0.9 / 6)
    assert list(scores) == [*TASKS, "overall"]


def test_overall_needs_all_six_tasks():
    assert geneval_scores(iter([("colors", True), ("colors", False)])) == {"colors": 0.5}
    with pytest.raises(InputError, match="colour"):
        geneval_scores([("colour", True)])
