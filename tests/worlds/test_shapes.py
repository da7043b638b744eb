"""The shapes world: true captions, no held-out combination in training, reproducible pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import mmspec.assets
from mmspec.worlds.shapes import (
    COLORS,
    RELATIONS,
    SHAPES,
    TASKS,
    Background,
    Item,
    Scene,
    prompt_list,
    render,
    sample,
)
from mmspec.worlds.shapes.detector import Detection
from mmspec.worlds.shapes.foils import foil, may_hold
from mmspec.worlds.shapes.prompts import Prompt, caption, names_unseen
from mmspec.worlds.shapes.scoring import score_prompt
from mmspec.worlds.shapes.vocabulary import (
    held_out_color,
    held_out_count,
    held_out_pair,
    held_out_relation,
)

PLAIN = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 1.0, 0.0, 0)


def truth(scene: Scene) -> list[Detection]:
    """What a perfect detector would report, in fractions of the side."""
    return [
        Detection(
            item.shape,
            item.color,
            (
                item.x - item.size / 2,
                item.y - item.size / 2,
                item.x + item.size / 2,
                item.y + item.size / 2,
            ),
            1.0,
        )
        for item in scene.items
    ]


@pytest.fixture(scope="module")
def training():
    rng = np.random.default_rng(11)
    return [sample(rng, TASKS[i % len(TASKS)], "train") for i in range(3000)]


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_true_of_their_scenes(task, split):
    rng = np.random.default_rng(3)
    for _ in range(150):
        prompt, scene = sample(rng, task, split)
        correct, reason = score_prompt(prompt.metadata(), truth(scene))
        assert correct, (prompt.prompt, reason)
        assert all(item.shape in prompt.prompt for item in scene.items)


@pytest.mark.parametrize("task", TASKS)
def test_prompts_are_false_of_a_spoilt_scene(task):
    """The counterpart: losing an object, recolouring all or moving one is noticed."""
    rng = np.random.default_rng(4)
    for _ in range(50):
        prompt, scene = sample(rng, task)
        seen = truth(scene)
        assert not score_prompt(prompt.metadata(), seen[1:])[0]
        other = [replace(hit, color="red" if hit.color != "red" else "blue") for hit in seen]
        named = any("color" in clause for clause in prompt.include)
        assert score_prompt(prompt.metadata(), other)[0] != named
        if task == "counting":
            assert not score_prompt(prompt.metadata(), [*seen, seen[0]])[0]
        if task == "position":
            first, second = seen
            swapped = [replace(first, box=second.box), replace(second, box=first.box)]
            assert not score_prompt(prompt.metadata(), swapped)[0]


def test_training_never_shows_held_out_combinations(training):
    for prompt, scene in training:
        for item in scene.items:
            assert not held_out_color(item.shape, item.color), prompt.prompt
        shapes = [item.shape for item in scene.items]
        assert not any(held_out_pair(a, b) for a in shapes for b in shapes), prompt.prompt
        if prompt.tag == "counting":
            assert not held_out_count(shapes[0], len(shapes)), prompt.prompt
        if prompt.tag == "position":
            relation = prompt.include[1]["position"][0]
            assert not held_out_relation(shapes[1], relation, shapes[0]), prompt.prompt


def test_training_shows_everything_else(training):
    """By enumeration: the held-out share is as small as it is said to be."""
    colors = {(item.shape, item.color) for _, scene in training for item in scene.items}
    assert len(colors) == len(SHAPES) * len(COLORS) - 16
    kinds = [frozenset(item.shape for item in scene.items) for _, scene in training]
    assert len({kind for kind in kinds if len(kind) == 2}) == 28 - 5
    counts = {
        (scene.items[0].shape, len(scene.items))
        for prompt, scene in training
        if prompt.tag == "counting"
    }
    assert len(counts) == 24 - 5


def test_a_statement_and_its_converse_are_held_out_together():
    converse = {"left of": "right of", "above": "below"}
    statements = [(a, r, b) for a in SHAPES for b in SHAPES if a != b for r in converse]
    for a, relation, b in statements:
        assert held_out_relation(a, relation, b) == held_out_relation(b, converse[relation], a)
    share = np.mean([held_out_relation(*statement) for statement in statements])
    assert 0.15 < share < 0.25


def test_held_out_prompts_name_an_unseen_combination(training):
    seen = {prompt.prompt for prompt, _ in training}
    prompts = prompt_list(50)
    assert prompts == prompt_list(50) != prompt_list(50, seed=1)
    assert [prompt.tag for prompt in prompts] == list(TASKS) * 50
    fresh = [prompt for prompt in prompts if prompt.tag != "single_object"]
    assert not any(prompt.prompt in seen for prompt in fresh)


def test_lists_are_what_their_code_makes_and_settings_are_chosen_on_others():
    folder = Path(mmspec.assets.__file__).parent / "prompts"
    test = prompt_list(100)
    tuning = prompt_list(60, seed=7, besides=test)
    seen = prompt_list(60, split="train")
    for name, prompts in (("held-out", test), ("tuning", tuning), ("seen", seen)):
        lines = (folder / f"shapes-{name}.jsonl").read_text().splitlines()
        assert [json.loads(line) for line in lines] == [prompt.metadata() for prompt in prompts]
    assert [p.tag for p in tuning] == [p.tag for p in seen] == list(TASKS) * 60
    single = [p for p in seen if p.tag == "single_object"]  # has no combination to hold out
    assert {p.prompt for p in seen} & {p.prompt for p in test} == {p.prompt for p in single}
    many = ("position", "color_attr")  # thousands of prompts
    asked = {prompt.prompt for prompt in test}
    assert asked.isdisjoint(prompt.prompt for prompt in tuning if prompt.tag in many)


def test_same_seed_same_picture():
    def pictures(seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        return np.stack([render(sample(rng, task)[1], 64) for task in TASKS])

    first = pictures(5)
    assert np.array_equal(first, pictures(5))
    assert not np.array_equal(first, pictures(6))


def test_resolutions_agree():
    rng = np.random.default_rng(8)
    for i in range(60):
        _, scene = sample(rng, TASKS[i % len(TASKS)])
        small = render(scene, 64).astype(float)
        halved = np.asarray(Image.fromarray(render(scene, 128)).reduce(2), float)
        gap = np.abs(small - halved)
        assert gap.mean() < 1.0, scene
        assert gap.max() < 60, scene  # a shift by one pixel would give 100 and more


@pytest.mark.parametrize("shape", SHAPES)
def test_edges_are_antialiased(shape):
    item = Item(shape, "black", 0.5, 0.5, 0.5, 5.0, (20, 20, 24))
    picture = render(Scene((item,), PLAIN), 128).astype(float)
    coverage = (140 - picture[..., 0]) / 120
    rim = (coverage > 0.05) & (coverage < 0.95)
    solid = coverage >= 0.95
    touching = np.zeros_like(solid)
    for axis in (0, 1):
        for step in (-1, 1):
            touching |= np.roll(solid, step, axis)
    # nearly every solid pixel's outer neighbour is mixed: few hard steps are left
    assert rim.sum() > 60
    hard = touching & ~solid & ~rim
    assert hard.sum() < 0.5 * rim.sum()
    assert 0.4 < coverage[rim].mean() < 0.6


@pytest.mark.parametrize("task", TASKS)
def test_objects_lie_inside_the_picture(task):
    rng = np.random.default_rng(9)
    for _ in range(400):
        for item in sample(rng, task)[1].items:
            reach = item.size / 2
            assert reach <= min(item.x, item.y, 1 - item.x, 1 - item.y), item


# --- foils ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", ["train", "held_out"])
@pytest.mark.parametrize("task", TASKS)
def test_foils_are_false_and_of_the_same_form(task, split):
    rng = np.random.default_rng(3)
    for _ in range(60):
        prompt, scene = sample(rng, task, split)
        text = foil(rng, prompt, split)
        assert text != prompt.prompt
        wrong = parsed(text, task)
        assert not score_prompt(wrong.metadata(), truth(scene))[0]
        assert score_prompt(prompt.metadata(), truth(scene))[0]
        if split == "train":
            assert not names_unseen(wrong.include)


def parsed(text: str, task) -> Prompt:
    """The prompt that a caption stands for, by asking all of them."""
    return _by_caption(task)[text]


@cache
def _by_caption(task) -> dict[str, Prompt]:
    colors = [(c, d) for c in COLORS for d in COLORS if c != d]
    pairs = [(a, b) for a in SHAPES for b in SHAPES if a != b]
    found = []
    if task == "single_object":
        found = [[{"class": a, "count": 1}] for a in SHAPES]
    if task == "colors":
        found = [[{"class": a, "count": 1, "color": c}] for a in SHAPES for c in COLORS]
    if task == "counting":
        found = [[{"class": a, "count": n}] for a in SHAPES for n in (2, 3, 4)]
    if task in ("two_object", "position"):
        found = [[{"class": a, "count": 1}, {"class": b, "count": 1}] for a, b in pairs]
    if task in ("color_attr", "position"):
        found += [
            [{"class": a, "count": 1, "color": c}, {"class": b, "count": 1, "color": d}]
            for a, b in pairs
            for c, d in colors
        ]
    if task == "position":
        found = [
            [first, {**second, "position": [relation, 0]}]
            for first, second in found
            for relation in RELATIONS
        ]
    prompts = [Prompt(caption(task, include), task, include) for include in found]
    if task == "counting":  # one too many is wrong too
        for prompt in prompts:
            clause = prompt.include[0]
            prompt.exclude.append({"class": clause["class"], "count": clause["count"] + 1})
    return {prompt.prompt: prompt for prompt in prompts}


def test_may_hold_never_misses_a_caption_that_is_true():
    """It leaves open where things are, and is exact in everything else."""
    rng = np.random.default_rng(4)
    drawn = [sample(rng, TASKS[i % 6], "held_out") for i in range(240)]
    doubtful = 0
    for prompt, _ in drawn[:80]:
        for _, scene in drawn:
            true = score_prompt(prompt.metadata(), truth(scene))[0]
            complete = sum(c["count"] for c in prompt.include) == len(scene.items)
            if may_hold(prompt, scene):
                doubtful += 1
                assert true or prompt.tag == "position"
            else:  # what it says can't be is false, or leaves something out of the picture
                assert not (true and complete)
    assert doubtful >= 80
