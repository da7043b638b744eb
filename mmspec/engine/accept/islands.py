"""Connected cells of a grid, for local verification (MuLo-SD, Peruzzo et al. 2026)."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor
from torch.nn.functional import avg_pool2d


def crowd(cells: Tensor, radius: int) -> Tensor:
    """Count the `cells [B, H, W]` at most `radius` rows and columns away, itself included."""
    side = 2 * radius + 1
    counts = avg_pool2d(cells.float()[:, None], side, 1, radius, divisor_override=1)
    return counts[:, 0].round().long()


def islands(positions: Iterable[int], stride: int) -> list[list[int]]:
    """The 8-connected groups of grid cells, each in raster order, the first cell's group first.

    Args:
        positions: cells by their position in raster order.
        stride: positions in a row of the grid.
    """
    left = set(positions)
    found = []
    for first in sorted(left):
        if first not in left:
            continue
        left.remove(first)
        island, border = [first], [first]
        while border:
            near = [n for n in _around(border.pop(), stride) if n in left]
            left.difference_update(near)
            island += near
            border += near
        found.append(sorted(island))
    return found


def in_turn(positions: Iterable[int], stride: int, window: int) -> list[list[int]]:
    """The cells of every island in turns; all islands have theirs side by side.

    A row of an island is `window` cells behind the one above it, as in ZipAR (He et al. 2024): of
    cells (r, c) the one with the smaller c + window · r comes first. With a window of a whole row
    that is raster order, a cell a turn; at 2 a cell comes after its neighbours above.

    Args:
        positions, stride: see `islands`.
        window: at least 1.
    """
    turns: list[list[int]] = []
    for island in islands(positions, stride):
        fronts: dict[int, list[int]] = {}
        for place in island:
            row, column = divmod(place, stride)
            fronts.setdefault(column + min(window, stride) * row, []).append(place)
        for turn, front in enumerate(sorted(fronts)):
            if turn == len(turns):
                turns.append([])
            turns[turn] += fronts[front]
    return turns


def _around(place: int, stride: int) -> list[int]:
    row, column = divmod(place, stride)
    columns = range(max(0, column - 1), min(stride, column + 2))
    return [r * stride + c for r in (row - 1, row, row + 1) for c in columns if r >= 0]
