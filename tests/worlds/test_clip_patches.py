"""Labels of a clip's patches: what is seen there and where it moves, against the pixels."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.worlds.shapes.scene import Background, Item, draw_item
from mmspec.worlds.shapes.vocabulary import COLORS, SHAPES
from mmspec.worlds.video_world.clip import Clip, Mover, sample
from mmspec.worlds.video_world.patches import LABELS, frame_labels
from mmspec.worlds.video_world.vocabulary import DIRECTIONS, KINDS

PATCHES, PATCH = 4, 16
GREY = Background((128, 128, 128), (128, 128, 128), 0.0, "plain", 0.0, 1.0, 0.0, 0)


def square(**place: float) -> Item:
    rng, centre = np.random.default_rng(0), np.array([place["x"], place["y"]])
    return draw_item(rng, "square", "red", centre, place["size"], "held_out")


def name(labels: np.ndarray) -> tuple[str, str, str]:
    shape, color, motion = (int(label) - 1 for label in labels)
    return SHAPES[shape], list(COLORS)[color], list(DIRECTIONS)[motion]


@pytest.mark.parametrize("way", list(DIRECTIONS))
def test_a_patch_says_what_is_there_and_where_it_moves(way):
    x, y = DIRECTIONS[way]
    mover = Mover(square(x=0.375, y=0.625, size=0.3), (0.01 * x, 0.01 * y))
    labels = frame_labels(Clip((mover,), GREY), 0, PATCHES, PATCH)
    assert labels.shape == (PATCHES, PATCHES, len(LABELS))
    assert name(labels[2, 1]) == ("square", "red", way)
    assert not labels[0].any()


def test_what_leaves_at_an_edge_moves_on_at_the_other():
    mover = Mover(square(x=0.02, y=0.4, size=0.4), (-0.03, 0.0))
    labels = frame_labels(Clip((mover,), GREY), 0, PATCHES, PATCH)  # in frame 1 its place is 0.99
    assert {name(labels[1, 0]), name(labels[1, 3])} == {("square", "red", "left")}


def test_what_bounces_moves_the_other_way_behind_an_edge():
    mover = Mover(square(x=0.513, y=0.5, size=0.3), (0.02, 0.0), bounces=True)
    clip = Clip((mover,), GREY)
    ways = [frame_labels(clip, frame, PATCHES, PATCH)[..., 2].max() for frame in range(60)]
    assert {list(DIRECTIONS)[way - 1] for way in ways} == {"left", "right"}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_the_objects_in_a_frame(kind):
    prompt, clip = sample(np.random.default_rng(7), kind)
    for frame in (0, 40, 139):
        labels = frame_labels(clip, frame, PATCHES, PATCH).reshape(-1, len(LABELS))
        there = {(item.shape, item.color) for item in clip.items(frame)}
        seen = {name(row)[:2] for row in labels if row.any()}
        assert seen, (prompt.prompt, frame)
        assert seen <= there, (prompt.prompt, frame)
        assert (labels < list(LABELS.values())).all()
