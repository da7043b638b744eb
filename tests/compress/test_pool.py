"""Average pooling on the grid: torch's own pooling where sizes divide, and a loop where not."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from mmspec.compress.pool import coarser, pool
from mmspec.errors import InputError


@pytest.mark.parametrize("factor", [1, 2, 3, 4, 6, 12])
def test_equal_cells_are_torch_pooling(factor):
    x = torch.randn(2, 12, 24, 5, dtype=torch.float64)
    made = pool(x.flatten(1, 2), 288 // factor**2, (12, 24))
    want = F.avg_pool2d(x.permute(0, 3, 1, 2), factor).flatten(2).transpose(1, 2)
    torch.testing.assert_close(made.features, want, rtol=0, atol=1e-12)
    assert (made.sizes == factor**2).all()


@pytest.mark.parametrize(("grid", "keep"), [((6, 6), 10), ((5, 7), 6), ((4, 9), 15), ((1, 8), 3)])
def test_unequal_cells(grid, keep):
    """Each token is in one cell; a cell is the mean of its tokens and stands in their middle."""
    rows, columns = grid
    x = torch.randn(2, rows * columns, 3, dtype=torch.float64)
    made = pool(x, keep, grid)
    down, across = coarser(keep, grid)
    cells = {}
    for r in range(rows):
        for c in range(columns):
            cells.setdefault((r * down // rows, c * across // columns), []).append((r, c))
    assert sorted(cells) == [(y, z) for y in range(down) for z in range(across)]
    for k, cell in enumerate(sorted(cells)):
        places = [r * columns + c for r, c in cells[cell]]
        want = sum(x[:, p] for p in places) / len(places)
        torch.testing.assert_close(made.features[:, k], want, rtol=0, atol=1e-12)
        assert made.sizes[0, k] == len(places)
        assert made.index[0, k] in places
    total = (made.features * made.sizes[..., None]).sum(1)
    torch.testing.assert_close(total, x.sum(1), rtol=0, atol=1e-12)


def test_shapes():
    assert coarser(64, (24, 24)) == (8, 8)
    assert coarser(72, (12, 24)) == (6, 12)
    assert coarser(6, (12, 24)) == (2, 3)
    assert coarser(7, (24, 24)) == (1, 7)
    assert pool(torch.randn(1, 9, 2), 1).index.tolist() == [[4]]


def test_grids_that_do_not_fit():
    x = torch.randn(1, 36, 2)
    with pytest.raises(InputError, match=r"no grid within 6 × 6 has 35 cells; keep 36 tokens"):
        pool(x, 35)
    with pytest.raises(InputError, match="36 visual tokens don't fill a grid of 5 × 7"):
        pool(x, 4, (5, 7))
    with pytest.raises(InputError, match="35 visual tokens don't fill a square"):
        pool(x[:, :35], 4)
