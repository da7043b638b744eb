"""Average pooling on the grid: the simplest compressor, and the one that others must beat."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ..errors import InputError
from .base import Compressed, check, wide


def pool(features: Tensor, keep: int, grid: tuple[int, int] | None = None) -> Compressed:
    """Means of cells of a coarser grid, of a shape as near to the old one's as `keep` allows.

    Cells don't overlap: row r of h goes to row ⌊r·h'/h⌋ of h', and columns likewise. `index` is the
    token in the middle of each cell.

    Args:
        features: `[B, N, C]`, row by row.
        keep: tokens K = h'·w' left.
        grid: rows and columns of the tokens; None: a square.

    Raises:
        InputError: the tokens don't fill that grid, or no coarser grid has `keep` cells.
    """
    check(features, keep)
    tokens = features.shape[1]
    side = math.isqrt(tokens)
    rows, columns = grid or (side, side)
    if rows * columns != tokens:
        what = f"a grid of {rows} × {columns}" if grid else "a square"
        raise InputError(f"{tokens} visual tokens don't fill {what}; pass the grid they stand on")
    down, across = (
        _cells(size, cells, features.device)
        for size, cells in zip((rows, columns), coarser(keep, (rows, columns)), strict=True)
    )
    cells = torch.kron(down, across)  # [K, N]
    sizes = cells.sum(1)
    x = wide(features)
    x = (cells.to(x.dtype) / sizes[:, None]) @ x
    middle = (_middle(down)[:, None] * columns + _middle(across)).reshape(keep)
    shape = (len(features), keep)
    return Compressed.full(x.to(features.dtype), middle.expand(shape), sizes.expand(shape))


def coarser(keep: int, grid: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns with `keep` cells, none more than in `grid`, nearest to its proportions.

    Raises:
        InputError: there is no such grid.
    """
    rows, columns = grid

    def fits(cells: int) -> list[tuple[int, int]]:
        pairs = [(y, cells // y) for y in range(1, rows + 1) if cells % y == 0]
        return [(y, x) for y, x in pairs if x <= columns]

    shapes = fits(keep)
    if not shapes:
        counts = (k for k in range(1, rows * columns + 1) if fits(k))
        near = min(counts, key=lambda k: abs(k - keep))
        raise InputError(f"no grid within {rows} × {columns} has {keep} cells; keep {near} tokens")

    def stretch(shape: tuple[int, int]) -> float:
        y, x = shape[0] * columns, shape[1] * rows
        return max(x, y) / min(x, y)

    return min(shapes, key=stretch)


def _cells(size: int, cells: int, device: torch.device) -> Tensor:
    """`[cells, size]`, 1 where a place belongs to a cell."""
    return F.one_hot(torch.arange(size, device=device) * cells // size, cells).T.contiguous()


def _middle(cells: Tensor) -> Tensor:
    """The place in the middle of each cell, of two the first."""
    first = cells.argmax(1)
    return first + (cells.sum(1) - 1) // 2
