"""Sightings, paths and overlaps: closed-form motions, seen through hand-made detections."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.worlds.shapes import COLORS, SHAPES, Background, Item, Scene, render
from mmspec.worlds.shapes.detector import Detection, read
from mmspec.worlds.video_world.actor import link, unrolled
from mmspec.worlds.video_world.occlusion import in_front, pieces, touch
from mmspec.worlds.video_world.prompts import roles_of
from mmspec.worlds.video_world.sightings import is_piece, is_whole, partial, whole

RIGHT = {"class": "circle", "count": 1, "color": "red", "motion": "right"}
STANDS = {"class": "square", "count": 1, "color": "blue", "motion": "still"}
PLAIN = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 1.0, 0.0, 0)
SIZE = np.array([0.3, 0.3])


def role(**fields):
    return roles_of([{**RIGHT, **fields}])[0]


def hit(x0: float, x1: float, y: float = 0.5, shape="circle", color="red", confidence=0.9):
    return Detection(shape, color, (x0, y - 0.15, x1, y + 0.15), confidence)


def in_view(x: float, y: float = 0.5) -> list[Detection]:
    """What there is of a circle of 0.3 about x, in one piece or two; pieces are no circles."""
    low, high = x % 1 - 0.15, x % 1 + 0.15
    if low < 0:
        pieces = [(0.0, high), (1 + low, 1.0)]
    elif high > 1:
        pieces = [(low, 1.0), (0.0, high - 1)]
    else:
        return [hit(low, high, y)]
    return [hit(*piece, y, shape="heart", confidence=0.1) for piece in pieces]


def seen(hits, who, frame=0):
    found = [whole(h.box) for h in hits if is_whole(h, who, frame)]
    return found + partial([h.box for h in hits if is_piece(h, who, frame, SIZE)], who, SIZE)


@pytest.mark.parametrize("pieces", ["both", "larger"])
def test_an_object_is_followed_round_the_picture(pieces):
    true = 0.4 + 0.017 * np.arange(200)
    frames = []
    for x in true:
        hits = in_view(x)
        if pieces == "larger":  # the detector misses slivers
            hits = sorted(hits, key=lambda h: h.box[0] - h.box[2])[:1]
        frames.append(seen(hits, role()))
    assert all(len(sightings) == 1 for sightings in frames)
    path, jumps = unrolled(link(frames, role())[0][0], role())
    assert np.allclose(path[:, 0], true, atol=0.007)  # a box is full but for a pixel and a half
    assert np.allclose(path[:, 1], 0.5)
    assert not jumps.any()


def test_equal_objects_keep_their_paths_apart():
    """Three abreast in any order of detection, all round the picture."""
    who = role(count=3)
    rng = np.random.default_rng(3)
    true = np.array([0.2, 0.24, 0.17])[:, None] + 0.015 * np.arange(150)
    lanes = (0.17, 0.5, 0.83)
    frames = []
    for time in range(150):
        hits = [h for x, y in zip(true[:, time], lanes, strict=True) for h in in_view(x, y)]
        rng.shuffle(hits)
        frames.append(seen(hits, who))
        assert len(frames[-1]) == 3
    tracks, there = link(frames, who)
    assert there.all()
    for track in tracks:
        path, jumps = unrolled(track, who)
        lane = int(np.abs(np.array(lanes) - path[0, 1]).argmin())
        assert np.allclose(path[:, 0] - path[0, 0], true[lane] - true[lane, 0])
        assert np.allclose(path[:, 1], lanes[lane])
        assert not jumps.any()


def test_what_is_behind_is_where_its_free_edge_says():
    """A circle of 0.3 passes behind a square from 0.35 to 0.65."""
    who = roles_of([STANDS, {**RIGHT, "passes": ["behind", 0]}])[1]
    square = hit(0.35, 0.65).box
    frames, true = [], 0.16 + 0.01 * np.arange(70)
    for x in true:
        low, high = x - 0.15, x + 0.15
        pieces = []
        if low < 0.33:
            pieces.append(hit(low, min(high, 0.35)).box)
        if high > 0.67:
            pieces.append(hit(max(low, 0.65), high).box)
        frames.append(partial(pieces, who, SIZE, covers=[square]))
    hidden = [time for time, sightings in enumerate(frames) if not sightings]
    assert len(hidden) > 3
    path, jumps = unrolled(link(frames, who)[0][0], who)
    assert np.allclose(path[:, 0], true, atol=0.007)  # a box is full but for a pixel and a half
    assert not jumps.any()


def test_what_is_in_front_or_stands_is_where_its_whole_box_is():
    stands, mover = roles_of([STANDS, {**RIGHT, "passes": ["in front of", 0]}])
    box, other = hit(0.4, 0.7).box, hit(0.3, 0.6).box
    assert partial([box], mover, SIZE, covers=[other])[0].known[0] == pytest.approx(0.55)
    assert np.allclose(partial([other], stands, SIZE, covers=[box])[0].known, (0.45, 0.5))
    assert np.isnan(partial([hit(0.3, 0.4).box], stands, SIZE, covers=[box])[0].known).all()


def test_pieces_count_only_where_the_edge_hides_the_rest():
    piece = hit(0.9, 1.0, shape="crescent")
    assert seen([piece], role())
    assert not seen([hit(0.4, 0.5, shape="crescent")], role())
    assert not seen([piece], role(motion="up"))
    assert not seen([piece], role(motion="left and right"))
    assert not seen([hit(0.3, 0.6, confidence=0.2)], role())
    assert not seen([hit(0.3, 0.6, color="blue")], role())


def test_colours_before_and_after_the_cue():
    who = role(turns="yellow", cue=33)
    old, new = hit(0.3, 0.6), hit(0.3, 0.6, color="yellow")
    assert [len(seen([old], who, t)) for t in (0, 26, 33, 38, 39, 100)] == [1, 1, 1, 1, 0, 0]
    assert [len(seen([new], who, t)) for t in (0, 26, 27, 33, 39, 100)] == [0, 0, 1, 1, 1, 1]


def test_gaps_are_straight_and_ends_go_on():
    track = np.full((30, 2), np.nan)
    known = [5, 6, 7, 12, 20, 21]
    track[known, 0] = (0.7 + 0.02 * np.array(known)) % 1
    track[known, 1] = 0.4
    path, jumps = unrolled(track, role())
    assert np.allclose(path[:, 0], 0.7 + 0.02 * np.arange(30))
    assert not jumps.any()
    still, _ = unrolled(track, role(motion="left and right"))
    assert np.allclose(still[:5, 0], still[5, 0])  # what does not go round stays where it was


def test_jumps_are_found():
    track = np.stack([0.3 + 0.015 * np.arange(20), np.full(20, 0.5)], -1)
    track[12:, 0] += 0.2
    _, jumps = unrolled(track, role())
    assert np.flatnonzero(jumps).tolist() == [12]
    track[12:, 0] -= 0.2
    track[8:, 1] += 0.15
    assert np.flatnonzero(unrolled(track, role())[1]).tolist() == [8]


def test_what_is_seen_once_has_no_path():
    track = np.full((9, 2), np.nan)
    track[4] = 0.5
    path, jumps = unrolled(track, role())
    assert np.isnan(path).all()
    assert not jumps.any()


# --- overlaps -------------------------------------------------------------------------------------


def drawn(front: str, back: str, gap: float) -> np.ndarray:
    """The colours of a picture of a blue shape in front of a red one, `gap` to the left of it."""
    items = (
        Item(back, "red", 0.5 - gap, 0.5, 0.4, 0.0, COLORS["red"]),
        Item(front, "blue", 0.5, 0.5, 0.4, 0.0, COLORS["blue"]),
    )
    return read(render(Scene(items, PLAIN), 64))[1]


@pytest.mark.parametrize("front", SHAPES)
@pytest.mark.parametrize("back", SHAPES)
def test_the_one_in_front_is_told(front, back):
    colors = drawn(front, back, 0.08)
    sides = []
    for shape, name, x in ((front, "blue", 0.5), (back, "red", 0.42)):
        alone = Scene((Item(shape, name, x, 0.5, 0.4, 0.0, COLORS[name]),), PLAIN)
        (found,) = read(render(alone, 128))[0]
        corners = np.array(found.box).reshape(2, 2) / 128
        sides.append((shape, name, corners.mean(0), corners[1] - corners[0]))
    assert in_front(colors, *sides) == 1
    assert in_front(colors, *reversed(sides)) == 0
    away = (*sides[1][:2], sides[1][2] + 0.5, sides[1][3])
    assert np.isnan(in_front(colors, sides[0], away))


def test_pieces_are_those_of_the_colour():
    colors = drawn("square", "circle", 0.2)
    (square,), (circle,) = pieces(colors, "blue"), pieces(colors, "red")
    assert square == pytest.approx((0.324, 0.324, 0.676, 0.676), abs=0.015)
    assert circle == pytest.approx((0.1, 0.3, 0.324, 0.7), abs=0.03)
    assert touch([square], [circle])
    assert pieces(colors, "green") == []
    apart = drawn("square", "circle", -0.28)
    assert len(pieces(apart, "red")) == 1
    assert not touch([(0.1, 0.1, 0.3, 0.3)], [(0.1, 0.33, 0.3, 0.5)])


def test_a_blob_at_the_edge_that_is_larger_than_the_object_is_no_piece_of_it():
    assert is_piece(hit(0.0, 0.3), role(), 0, SIZE)
    assert not is_piece(hit(0.0, 0.4), role(), 0, SIZE)
    assert is_piece(hit(0.0, 0.4), role(), 0, np.full(2, np.nan))  # nobody knows its size
