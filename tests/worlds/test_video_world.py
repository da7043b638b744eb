"""The clip world: captions that stay true, exact frames, no held-out combination in training."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import mmspec.assets
from mmspec.worlds.shapes import COLORS, SHAPES, Background, Item, Scene, render
from mmspec.worlds.shapes.vocabulary import held_out_color, held_out_count, held_out_pair
from mmspec.worlds.video_world.clip import (
    Clip,
    Mover,
    held_out_clips,
    render_clip,
    sample,
)
from mmspec.worlds.video_world.prompts import caption
from mmspec.worlds.video_world.vocabulary import (
    CUES,
    DIRECTIONS,
    KINDS,
    MOVES,
    PASSES,
    Timing,
    held_out_pass,
)

PLAIN = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 1.0, 0.0, 0)
LIST = Path(mmspec.assets.__file__).parent / "prompts" / "clips.jsonl"
TUNING = LIST.with_name("clips-tuning.jsonl")
LONG = 600  # frames: fifty blocks
SPLITS = ("train", "held_out")


def clips(kind: str, count: int, seed: int = 31):
    rng = np.random.default_rng([seed, KINDS.index(kind)])
    for i in range(count):
        yield sample(rng, kind, SPLITS[i % 2])


def path(mover: Mover, frames: int = LONG) -> np.ndarray:
    """Centres `[T, 2]`."""
    return np.array([(item.x, item.y) for item in (mover.at(t) for t in range(frames))])


def by_clause(prompt, clip: Clip) -> list[list[Mover]]:
    """The movers that a clause names."""
    return [
        [m for m in clip.movers if (m.item.shape, m.item.color) == (c["class"], c["color"])]
        for c in prompt.include
    ]


# --- captions -------------------------------------------------------------------------------------


RED = {"class": "circle", "count": 1, "color": "red"}
BLUE = {"class": "square", "count": 1, "color": "blue"}
SAID = {
    "a red circle moves right": [{**RED, "motion": "right"}],
    "a red circle bounces between top and bottom": [{**RED, "motion": "top and bottom"}],
    "an orange star stands still": [
        {"class": "star", "count": 1, "color": "orange", "motion": "still"}
    ],
    "a red circle moves right behind a blue square": [
        {**BLUE, "motion": "still"},
        {**RED, "motion": "right", "passes": ["behind", 0]},
    ],
    "a red circle moves right and a blue square moves left": [
        {**RED, "motion": "right"},
        {**BLUE, "motion": "left"},
    ],
    "a red circle turns yellow": [{**RED, "motion": "still", "turns": "yellow", "cue": 69}],
    "a red circle moves up and turns yellow late": [
        {**RED, "motion": "up", "turns": "yellow", "cue": 105}
    ],
    "three red circles move down": [{**RED, "count": 3, "motion": "down"}],
}


@pytest.mark.parametrize("words", SAID)
def test_captions(words):
    assert caption(SAID[words]) == words


@pytest.mark.parametrize("kind", KINDS)
def test_captions_say_all_that_is_asked(kind):
    """Two prompts of a kind with one caption ask for the same."""
    asked = {}
    for prompt, _ in clips(kind, 300):
        assert asked.setdefault(prompt.prompt, prompt.include) == prompt.include
        assert prompt.tag == kind


# --- truth ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_every_object_is_as_told_for_ever(kind):
    for prompt, clip in clips(kind, 12):
        named = by_clause(prompt, clip)
        assert sum(map(len, named)) == len(clip.movers)
        for clause, movers in zip(prompt.include, named, strict=True):
            assert len(movers) == clause["count"]
            for mover in movers:
                places = path(mover)
                assert ((places >= 0) & (places <= 1)).all()
                steps = np.diff(places, axis=0)
                if clause["motion"] in DIRECTIONS:
                    steps -= np.rint(steps)  # round the picture
                    direction = np.array(DIRECTIONS[clause["motion"]])
                    speed = np.linalg.norm(steps, axis=1)
                    assert np.allclose(steps, speed[:, None] * direction)
                    assert np.allclose(speed, speed[0])
                    assert clause["motion"] == "still" or 0.01 <= speed[0] <= 0.02
                for time in range(0, LONG, 3):
                    turned = "turns" in clause and time >= clause["cue"]
                    color = clause["turns"] if turned else clause["color"]
                    item = mover.at(time)
                    assert (item.shape, item.color) == (clause["class"], color)
                    assert np.abs(np.subtract(item.tint, COLORS[color])).max() <= 8


def test_cues_are_parts_of_twelve_blocks():
    assert CUES == {"early": 33, "": 69, "late": 105}
    assert Timing().frames(12) == 141


def test_what_bounces_turns_at_the_edges_only():
    for prompt, clip in clips("bounce", 40):
        (mover,) = clip.movers
        axis = 0 if prompt.include[0]["motion"] == "left and right" else 1
        places = path(mover)
        assert np.ptp(places[:, 1 - axis]) == 0
        steps = np.diff(places[:, axis])
        full = np.abs(steps).max()
        slow = np.abs(np.abs(steps) - full) > 1e-9  # the frames in which it turns
        margin = 0.5 - np.abs(places[:, axis] - 0.5) - mover.item.size / 2
        assert (margin > 0.0199).all()
        assert (margin[:-1][slow] < 0.02 + full).all()
        turns = np.flatnonzero(np.diff(np.sign(steps[~slow])))
        assert len(turns) >= 4  # there and back, and again


@pytest.mark.parametrize("kind", KINDS)
def test_objects_start_whole_and_apart(kind):
    for _, clip in clips(kind, 60):
        items = clip.items(0)
        for item in items:
            assert item.size / 2 <= min(item.x, item.y, 1 - item.x, 1 - item.y)
        for i, a in enumerate(items):
            for b in items[:i]:
                assert max(abs(a.x - b.x), abs(a.y - b.y)) > (a.size + b.size) / 2


@pytest.mark.parametrize("kind", ["past", "cross", "count"])
def test_objects_never_overlap_unless_told(kind):
    for prompt, clip in clips(kind, 60):
        across = int(prompt.include[-1]["motion"] in ("left", "right"))
        items = clip.items(0)
        for i, a in enumerate(items):
            for b in items[:i]:
                assert abs((a.x, a.y)[across] - (b.x, b.y)[across]) > (a.size + b.size) / 2


@pytest.mark.parametrize("kind", ["behind", "in_front"])
def test_what_is_in_front_hides_the_other(kind):
    """In the pixels: where both masks cover, the one that is told in front is seen."""
    for prompt, clip in clips(kind, 12):
        (stands,), (moves,) = by_clause(prompt, clip)
        front = stands if kind == "behind" else moves
        both = 0
        for time in range(0, 141, 6):
            covers = [
                render_clip(Clip((blank(mover),), PLAIN), range(time, time + 1))[0, ..., 0] == 255
                for mover in clip.movers
            ]
            common = covers[0] & covers[1]
            seen = render_clip(clip, range(time, time + 1))[0][common]
            assert (seen == front.item.tint).all()
            both += common.sum()
        assert both > 30, prompt.prompt  # it happens within the first twelve blocks


def blank(mover: Mover) -> Mover:
    return replace(mover, item=replace(mover.item, tint=(255, 255, 255)))


# --- held-out combinations ------------------------------------------------------------------------


def test_training_shows_everything_but_the_held_out():
    rng = np.random.default_rng(12)
    passes, colors, counts = set(), set(), set()
    for i in range(4000):
        prompt, clip = sample(rng, KINDS[i % len(KINDS)])
        shapes = {mover.item.shape for mover in clip.movers}
        assert not any(held_out_pair(a, b) for a in shapes for b in shapes)
        for time in (0, 120):
            colors |= {(item.shape, item.color) for item in clip.items(time)}
        if prompt.tag in PASSES:
            passes.add((prompt.include[1]["motion"], prompt.include[1]["passes"][0]))
        if prompt.tag == "count":
            counts.add((prompt.include[0]["class"], prompt.include[0]["count"]))
    assert colors == {(s, c) for s in SHAPES for c in COLORS if not held_out_color(s, c)}
    assert passes == {(m, r) for m in MOVES for r in PASSES.values() if not held_out_pass(m, r)}
    assert len(passes) == 9
    assert counts == {(s, n) for s in SHAPES for n in (2, 3) if not held_out_count(s, n)}


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_prompts_are_in_no_training_clip(kind):
    rng = np.random.default_rng(13)
    seen = {sample(rng, kind)[0].prompt for _ in range(400)}
    fresh = {sample(rng, kind, "held_out")[0].prompt for _ in range(400)}
    assert not seen & fresh


# --- frames ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_any_window_is_what_it_is_in_the_whole(kind):
    _, clip = next(clips(kind, 1))
    whole = render_clip(clip, 141)
    assert whole.shape == (141, 64, 64, 3)
    assert whole.dtype == np.uint8
    for window in (range(1), range(57, 69), range(60, 141, 20)):
        assert np.array_equal(
            render_clip(clip, window), whole[window.start :: window.step][: len(window)]
        )


def test_frames_are_scenes_while_all_is_inside():
    compared = 0
    for kind in KINDS:
        for _, clip in clips(kind, 4):
            for time in range(0, 60, 7):
                items = clip.items(time)
                if all(min(i.x, i.y, 1 - i.x, 1 - i.y) > 0.3 for i in items):
                    frame = render_clip(clip, range(time, time + 1), 96)[0]
                    assert np.array_equal(frame, render(Scene(items, clip.background), 96))
                    compared += 1
    assert compared > 30


@pytest.mark.parametrize("step", [(1, 0), (-1, 0), (0, 1), (0, -1)])
def test_what_leaves_comes_back_at_the_opposite_edge(step):
    """On an even background a pixel a frame rolls the picture."""
    item = Item("heart", "red", 0.41, 0.57, 0.33, 5.0, COLORS["red"])
    mover = Mover(item, (step[0] / 64, step[1] / 64))
    frames = render_clip(Clip((mover,), PLAIN), 140)
    for time, frame in enumerate(frames):
        gap = frame.astype(int) - np.roll(frames[0], (time * step[1], time * step[0]), (0, 1))
        assert np.abs(gap).max() <= 2, time  # the last bit of a coordinate may tip a corner


def test_same_seed_same_clip():
    for kind in KINDS:
        first, second, other = (sample(np.random.default_rng(seed), kind) for seed in (5, 5, 6))
        assert first == second != other


# --- blocks and the fixed list --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timing", "lengths"),
    [(Timing(), [9, 12, 12, 12]), (Timing(3, 1), [3] * 4), (Timing(1, 8), [1, 8, 8, 8])],
)
def test_blocks_share_out_the_frames(timing, lengths):
    spans = [timing.span(block) for block in range(4)]
    assert [len(span) for span in spans] == lengths
    assert [t for span in spans for t in span] == list(range(timing.frames(4)))
    for block, span in enumerate(spans):
        assert {timing.block_of(frame) for frame in span} == {block}


def stored(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_list_is_what_the_function_makes():
    lines = list(held_out_clips(100))
    assert stored(LIST) == [line.line() for line in lines]
    assert Counter(line.prompt.tag for line in lines) == dict.fromkeys(KINDS, 10)
    assert len({line.id for line in lines}) == len({line.prompt.prompt for line in lines}) == 100


def test_thresholds_are_chosen_on_other_prompts():
    lines, others = list(held_out_clips(100)), list(held_out_clips(20, seed=7))
    assert stored(TUNING) == [line.line() for line in others]
    assert {line.prompt.prompt for line in lines}.isdisjoint(line.prompt.prompt for line in others)
