"""GenEval's judge on what a fake detector and fake colours say, and the shapes world's judge."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmspec.eval.judges.geneval import GenEvalJudge, ShapesJudge
from mmspec.eval.judges.mask2former import Instance, box_of
from mmspec.worlds.shapes import TASKS, render, sample

SIDE = 60
PICTURE = Image.new("RGB", (SIDE, SIDE), (10, 20, 30))


def thing(label: str, x: int, y: int, confidence: float, size: int = 10) -> Instance:
    mask = np.zeros((SIDE, SIDE), bool)
    mask[y : y + size, x : x + size] = True
    return Instance(label, confidence, box_of(mask), mask)


class Detector:
    """Sees the same in every picture; answers only above the threshold, as told."""

    def __init__(self, *things: Instance) -> None:
        self.things = things

    def detect(self, image, threshold):
        assert threshold == 0.3  # the lowest that any task needs
        return [thing for thing in self.things if thing.confidence > threshold]


class Colors:
    """Names the colour by the size of the crop, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, tuple[int, int]]] = []

    def classify(self, crops, label):
        self.asked += [(label, crop.size) for crop in crops]
        return ["red" if crop.width == 10 else "blue" for crop in crops]


def judged(metadata, *things):
    colors = Colors()
    judge = GenEvalJudge(Detector(*things), colors, "fake")
    [answer] = judge.judge([metadata], [PICTURE])
    return answer, colors.asked


def one(tag, *clauses, exclude=()):
    return {"tag": tag, "prompt": "", "include": list(clauses), "exclude": list(exclude)}


def test_a_single_object_needs_a_confidence_above_three_tenths():
    prompt = one("single_object", {"class": "dog", "count": 1})
    assert judged(prompt, thing("dog", 0, 0, 0.31))[0] == (True, "")
    assert not judged(prompt, thing("dog", 0, 0, 0.3))[0][0]
    assert not judged(prompt, thing("cat", 0, 0, 0.9))[0][0]


def test_counting_needs_nine_tenths_and_the_exact_number():
    dogs = {"class": "dog", "count": 2}
    prompt = one("counting", dogs, exclude=[{"class": "dog", "count": 3}])
    sure = [thing("dog", x, 0, 0.95) for x in (0, 20, 40)]
    doubtful = thing("dog", 0, 30, 0.9)
    assert judged(prompt, *sure[:2], doubtful)[0] == (True, "")
    assert not judged(prompt, sure[0], doubtful)[0][0]
    assert not judged(prompt, *sure)[0][0]


def test_positions_come_from_the_boxes():
    prompt = one(
        "position",
        {"class": "cat", "count": 1},
        {"class": "dog", "count": 1, "position": ["left of", 0]},
    )
    cat = thing("cat", 40, 20, 0.8)
    assert judged(prompt, cat, thing("dog", 0, 20, 0.8))[0] == (True, "")
    assert not judged(prompt, cat, thing("dog", 40, 45, 0.8))[0][0]


def test_colours_are_asked_of_the_most_confident_objects_and_only_where_named():
    prompt = one(
        "color_attr",
        {"class": "dog", "count": 1, "color": "red"},
        {"class": "cat", "count": 1, "color": "blue"},
    )
    dog, cat = thing("dog", 0, 0, 0.8), thing("cat", 30, 0, 0.8, size=12)
    answer, asked = judged(
        prompt, dog, cat, thing("dog", 0, 30, 0.5, size=12), thing("bed", 0, 0, 1)
    )
    assert answer == (True, "")
    assert asked == [("dog", (10, 10)), ("cat", (12, 12))]
    answer, _ = judged(prompt, thing("dog", 0, 0, 0.8, size=12), cat)
    assert answer == (False, "expected 1 red dog, found blue")
    plain = one("two_object", {"class": "dog", "count": 1}, {"class": "cat", "count": 1})
    assert judged(plain, dog, cat) == ((True, ""), [])


def test_sixteen_objects_a_class_at_most():
    many = [thing("dog", 3 * i, 0, 0.9 - 0.01 * i, size=2) for i in range(18)]
    crowd = one(
        "two_object", {"class": "dog", "count": 16}, exclude=[{"class": "dog", "count": 17}]
    )
    assert judged(crowd, *many)[0] == (True, "")


def test_pictures_and_prompts_go_in_pairs():
    judge = GenEvalJudge(Detector(), Colors(), "fake")
    with pytest.raises(ValueError, match="shorter"):
        judge.judge([one("single_object", {"class": "dog", "count": 1})] * 2, [PICTURE])


def test_the_shapes_judge_knows_a_picture_from_anothers():
    rng = np.random.default_rng(4)
    scenes = [sample(rng, task) for task in TASKS for _ in range(4)]
    prompts = [prompt.metadata() for prompt, _ in scenes]
    images = [Image.fromarray(render(scene)).convert("RGBA") for _, scene in scenes]
    assert ShapesJudge().judge(prompts, images) == [(True, "")] * len(scenes)
    swapped = ShapesJudge().judge(prompts, images[12:] + images[:12])
    assert sum(right for right, _ in swapped) < len(scenes) / 4
    assert all(reason for right, reason in swapped if not right)
