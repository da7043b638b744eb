"""Labels of patches against the pictures themselves."""

from __future__ import annotations

import numpy as np
import pytest

from mmspec.worlds.shapes.charts import Chart, sample_chart
from mmspec.worlds.shapes.exchanges import draw, sample_picture
from mmspec.worlds.shapes.patches import LABELS, patch_labels
from mmspec.worlds.shapes.scene import Background, Item, Scene
from mmspec.worlds.shapes.vocabulary import COLORS, SHAPES

GREY = Background((140, 140, 140), (140, 140, 140), 0.0, "plain", 0.0, 0.2, 0.0, 0)


def label(shape=None, color=None, value=0):
    place = list(COLORS).index(color) + 1 if color else 0
    return [SHAPES.index(shape) + 1 if shape else 0, place, value]


def test_a_scene_by_hand():
    left = Item("square", "red", 0.25, 0.5, 0.4, 0.0, COLORS["red"])
    right = Item("circle", "blue", 0.75, 0.5, 0.4, 0.0, COLORS["blue"])
    labels = patch_labels(Scene((left, right), GREY), 8, 8)
    assert labels.shape == (8, 8, len(LABELS))
    assert labels[3, 1].tolist() == labels[4, 2].tolist() == label("square", "red")
    assert labels[3, 6].tolist() == label("circle", "blue")
    assert not labels[0].any()
    assert not labels[7].any()


def test_bars_by_hand():
    chart = Chart("bar", ("red", "blue", "pink"), (2, 9, 5), "black", (140,) * 3, False, 0.0)
    labels = patch_labels(chart, 12, 8)
    assert labels[9, 3].tolist() == label(color="red", value=2)
    assert labels[2, 6].tolist() == labels[9, 6].tolist() == label(color="blue", value=9)
    assert not labels[2, 3].any()


def test_slices_have_tenths():
    chart = Chart("pie", ("white", "brown"), (9, 1), "black", (140,) * 3, False, 0.0)
    labels = patch_labels(chart, 12, 8).reshape(-1, 3).tolist()
    assert label(color="white", value=9) in labels
    assert label(color="brown", value=1) in labels


@pytest.mark.parametrize("kind", ["description", "bar_chart", "pie_chart"])
def test_patches_have_the_colors_of_their_labels(kind):
    """The middle of a patch that one part covers has that part's palette colour."""
    rng, checked = np.random.default_rng(2), 0
    for _ in range(20):
        picture = sample_picture(rng, kind)
        labels = patch_labels(picture, 48, 2)
        fine = draw(picture, 96).reshape(48, 2, 48, 2, 3).mean((1, 3))
        inner = np.ones((48, 48), bool)
        inner[:1] = inner[-1:] = inner[:, :1] = inner[:, -1:] = False
        for axis, shift in ((0, 1), (0, -1), (1, 1), (1, -1)):
            inner &= (np.roll(labels, shift, axis) == labels).all(-1)
        for number, color in enumerate(COLORS.values(), 1):
            shown = inner & (labels[..., 1] == number)
            near = np.abs(fine[shown] - color).max(-1) < 24
            checked += len(near)
            assert near.mean() > 0.97 if len(near) else True
    assert checked > 1000


def test_points_of_a_line_are_where_their_values_are():
    rng = np.random.default_rng(5)
    for _ in range(10):
        chart = sample_chart(rng, "line")
        labels = patch_labels(chart, 48, 2)
        for shape, value in zip(chart.labels, chart.values, strict=True):
            rows, columns = np.nonzero(labels[..., 0] == SHAPES.index(shape) + 1)
            assert set(labels[rows, columns, 2]) == {value}
            point = rows[rows < 40]
            middle = (point.min() + point.max() + 1) / 2 / 48
            assert middle == pytest.approx(0.84 - 0.078 * value, abs=0.03)
