"""Motion: closed-form tracks, a slow reading of the line fit, and rendered clips."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

from mmspec.errors import InputError
from mmspec.eval.metrics.motion import DIRECTIONS, check_motion, follow, judge_motion
from mmspec.worlds.shapes import Background, Item, Scene, render
from mmspec.worlds.shapes.detector import Detection
from mmspec.worlds.shapes.vocabulary import COLORS

NAN = (math.nan, math.nan)


def line(dx: float, dy: float, frames: int = 9) -> np.ndarray:
    """A straight track over the whole displacement."""
    return np.array([0.5, 0.5]) + np.linspace(0, 1, frames)[:, None] * (dx, dy)


def correct(track, direction: str) -> bool:
    right, reason = check_motion(np.asarray(track, float), direction)
    assert right == (reason == "")
    return right


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_each_direction_holds_only_for_its_track(direction):
    tracks = {
        "left": line(-0.3, 0.1),
        "right": line(0.3, -0.1),
        "up": line(0.1, -0.3),
        "down": line(-0.1, 0.3),
        "still": line(0.01, -0.01),
    }
    for word, track in tracks.items():
        assert correct(track, direction) == (word == direction)


def test_thresholds():
    assert correct(line(0.051, 0), "right")
    assert not correct(line(0.049, 0), "right")
    for angle, within in ((0, True), (44, True), (46, False), (90, False), (180, False)):
        x, y = math.cos(math.radians(angle)), math.sin(math.radians(angle))
        assert correct(line(0.3 * x, 0.3 * y), "right") == within
        assert correct(line(0.3 * x, -0.3 * y), "right") == within
    assert correct(line(0.3, 0.3), "right")  # the diagonal itself is both
    assert correct(line(0.3, 0.3), "down")


def test_still_means_never_away():
    there_and_back = np.concatenate([line(0.2, 0, 5), line(0.2, 0, 5)[::-1]])
    assert not correct(there_and_back, "still")
    assert not any(correct(there_and_back, word) for word in DIRECTIONS)
    jitter = np.array([[0.5, 0.5], [0.52, 0.5], [0.5, 0.53], [0.48, 0.5]])
    assert correct(jitter, "still")
    # half the way in one jump: the fitted line is longer than the way itself
    jump = np.array([[0.5, 0.5]] * 4 + [[0.545, 0.5]] * 4)
    assert [word for word in DIRECTIONS if correct(jump, word)] == ["still"]


def test_unseen_frames_are_left_out_up_to_half():
    track = line(0.3, 0, 8)
    track[[0, 2, 5, 7]] = NAN
    assert correct(track, "right")
    track[3] = NAN
    assert check_motion(track, "right") == (False, "found in 3 of 8 frames")
    assert not correct([NAN, (0.5, 0.5)], "still")
    assert not correct([(0.5, 0.5)], "still")


def test_an_unknown_direction_is_named():
    with pytest.raises(InputError, match=r"'north'.*left, right"):
        check_motion(line(0.3, 0), "north")


def slow(track, direction: str) -> tuple[bool, bool]:
    """The definition, one scalar at a time; also whether the answer is far from its thresholds."""
    seen = [(t, x, y) for t, (x, y) in enumerate(track)]
    mean_t = sum(t for t, _, _ in seen) / len(seen)
    spread = sum((t - mean_t) ** 2 for t, _, _ in seen)
    dx = sum((t - mean_t) * x for t, x, _ in seen) / spread * (len(track) - 1)
    dy = sum((t - mean_t) * y for t, _, y in seen) / spread * (len(track) - 1)
    ahead = {"left": -dx, "right": dx, "up": -dy, "down": dy}[direction]
    aside = abs(dy) if direction in ("left", "right") else abs(dx)
    extent = max(math.dist(a, b) for a in track for b in track)
    clear = all(abs(length - 0.05) > 1e-6 for length in (math.hypot(dx, dy), extent))
    clear = clear and abs(abs(ahead) - aside) > 1e-6
    return extent > 0.05 and math.hypot(dx, dy) >= 0.05 and ahead >= aside, clear


@settings(deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(0, 1) | st.floats(0.45, 0.55)] * 2), min_size=2, max_size=8),
    st.sampled_from(["left", "right", "up", "down"]),
)
def test_agrees_with_the_slow_reading(track, direction):
    expected, clear = slow(track, direction)
    assume(clear)
    assert correct(track, direction) == expected
    assert not (correct(track, direction) and correct(track, "still"))


def hit(shape: str, color: str, x: float, y: float, confidence: float = 0.9) -> Detection:
    return Detection(shape, color, (x - 5, y - 5, x + 5, y + 5), confidence)


def test_an_object_is_followed_among_its_likes():
    frames = [
        [
            hit("star", "red", 20, 50, 0.8),
            hit("star", "red", 90, 50, 0.9),
            hit("ring", "red", 0, 0),
        ],
        [hit("star", "blue", 90, 50), hit("star", "red", 24, 50, 1.0), hit("star", "red", 80, 50)],
        [hit("ring", "red", 80, 50)],
        [hit("star", "red", 28, 50), hit("star", "red", 66, 50, 0.1)],
    ]
    expected = np.array([[90, 50], [80, 50], NAN, [66, 50]])
    assert np.array_equal(follow(frames, "star", "red"), expected, equal_nan=True)
    assert np.array_equal(follow(frames, "star")[1], [90, 50])
    assert np.isnan(follow(frames, "heart")).all()


PLAIN = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 1.0, 0.0, 0)


def clip(moves, frames: int = 6, side: int = 96) -> list[Image.Image]:
    """Objects `(shape, color, from, to)` on straight ways."""
    pictures = []
    for share in np.linspace(0, 1, frames):
        items = []
        for shape, color, start, end in moves:
            x, y = np.array(start) + share * (np.array(end) - start)
            items.append(Item(shape, color, float(x), float(y), 0.3, 0.0, COLORS[color]))
        pictures.append(Image.fromarray(render(Scene(tuple(items), PLAIN), side)))
    return pictures


WAYS = {"left": (-0.2, 0), "right": (0.2, 0), "up": (0, -0.2), "down": (0, 0.2), "still": (0, 0)}


@pytest.mark.parametrize("said", DIRECTIONS)
@pytest.mark.parametrize("way", DIRECTIONS)
def test_rendered_clips(said, way):
    end = (0.3 + WAYS[way][0] * 0.5, 0.7 + WAYS[way][1] * 0.5)
    frames = clip([("star", "red", (0.3, 0.7), end), ("ring", "blue", (0.7, 0.25), (0.7, 0.25))])
    metadata = {
        "prompt": "",
        "include": [
            {"class": "star", "count": 1, "color": "red", "motion": said},
            {"class": "ring", "count": 1},
        ],
    }
    right, reason = judge_motion(metadata, frames)
    assert right == (said == way)
    assert right or reason.startswith("star: ")


def test_every_clause_that_names_a_motion_must_hold():
    frames = clip(
        [("star", "red", (0.3, 0.7), (0.5, 0.7)), ("ring", "blue", (0.7, 0.25), (0.5, 0.25))]
    )
    clauses = [
        {"class": "star", "count": 1, "motion": "right"},
        {"class": "ring", "count": 1, "motion": "right"},
    ]
    right, reason = judge_motion({"prompt": "", "include": clauses}, frames)
    assert not right
    assert reason.startswith("ring: expected to move right, moved (-0.2")
    clauses[1]["motion"] = "left"
    assert judge_motion({"prompt": "", "include": clauses}, frames) == (True, "")
    clauses[1]["color"] = "red"
    assert judge_motion({"prompt": "", "include": clauses}, frames) == (
        False,
        "ring: found in 0 of 6 frames",
    )


def test_a_prompt_without_a_motion_is_refused():
    with pytest.raises(InputError, match="'a star' names a motion"):
        judge_motion({"prompt": "a star", "include": [{"class": "star", "count": 1}]}, [])
