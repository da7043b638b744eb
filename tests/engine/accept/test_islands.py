"""Cells of a grid that belong together, against scipy.ndimage; the order of their turns."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage

from mmspec.engine.accept.islands import crowd, in_turn, islands


@st.composite
def grids(draw):
    """A grid with some cells set."""
    rows, columns = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    flags = draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    return np.array(flags).reshape(rows, columns)


def labelled(cells: np.ndarray) -> list[list[int]]:
    """The 8-connected groups by scipy, in raster order."""
    labels, count = ndimage.label(cells, structure=np.ones((3, 3)))
    return sorted(np.flatnonzero(labels == i + 1).tolist() for i in range(count))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(grids())
def test_islands_are_scipys_labels(cells):
    found = islands(np.flatnonzero(cells).tolist(), cells.shape[1])
    assert found == labelled(cells)  # sorted by their first cell, each in raster order


@settings(max_examples=100, deadline=None, derandomize=True)
@given(grids(), st.integers(0, 3))
def test_crowd_counts_what_is_near(cells, radius):
    square = np.ones((2 * radius + 1,) * 2, dtype=int)
    counts = crowd(torch.from_numpy(cells)[None], radius)[0].numpy()
    assert np.array_equal(counts, ndimage.convolve(cells.astype(int), square, mode="constant"))
    dilated = ndimage.binary_dilation(cells, square)
    assert np.array_equal(counts > 0, dilated)


def test_crowd_keeps_pictures_apart():
    cells = torch.zeros(2, 3, 3, dtype=torch.bool)
    cells[0, 1, 1] = True
    assert crowd(cells, 1).sum((1, 2)).tolist() == [9, 0]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(grids(), st.integers(1, 8))
def test_turns(cells, window):
    stride = cells.shape[1]
    positions = np.flatnonzero(cells).tolist()
    turns = in_turn(positions, stride, window)
    assert sorted(place for turn in turns for place in turn) == positions
    turn_of = {place: t for t, turn in enumerate(turns) for place in turn}
    wait = min(window, stride)
    for island in labelled(cells):
        of_island = sorted({turn_of[place] for place in island})
        assert of_island == list(range(len(of_island)))  # no turn is left out
        for a in island:
            for b in island:
                (r, c), (s, d) = divmod(a, stride), divmod(b, stride)
                assert (turn_of[a] < turn_of[b]) == (c + wait * r < d + wait * s)


@settings(max_examples=80, deadline=None, derandomize=True)
@given(grids())
def test_a_window_of_a_row_is_raster_order(cells):
    stride = cells.shape[1]
    turns = in_turn(np.flatnonzero(cells).tolist(), stride, stride)
    found = labelled(cells)
    for turn, drawn in enumerate(turns):
        assert sorted(drawn) == sorted(i[turn] for i in found if len(i) > turn)


@pytest.mark.parametrize(("window", "most"), [(1, 31), (2, 46), (16, 256)])
def test_turns_of_a_whole_picture(window, most):
    """The most there can be: columns + window · (rows − 1)."""
    assert len(in_turn(range(256), 16, window)) == most
    assert in_turn([], 16, window) == []
