"""Pictures of many sizes in batches of one size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from .base import Images, to_uint8

if TYPE_CHECKING:
    from torch import Tensor


def sizes(images: Images) -> list[tuple[int, int]]:
    """`(width, height)` of each picture."""
    if isinstance(images, Sequence):
        return [image.size for image in images]
    return [(images.shape[-1], images.shape[-2])] * len(images)


def rows_of_one_size(images: Images, batch_size: int) -> Iterator[list[int]]:
    """Indices of at most `batch_size` pictures of equal size; each picture comes once."""
    by_size: dict[tuple[int, int], list[int]] = {}
    for row, size in enumerate(sizes(images)):
        by_size.setdefault(size, []).append(row)
    for rows in by_size.values():
        for first in range(0, len(rows), batch_size):
            yield rows[first : first + batch_size]


def select(images: Images, rows: Sequence[int]) -> Tensor:
    """Some pictures, of equal size, as uint8 `[len(rows), 3, H, W]`."""
    if isinstance(images, Sequence):
        return to_uint8([images[row] for row in rows])
    return to_uint8(images)[list(rows)]
