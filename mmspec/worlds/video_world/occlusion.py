"""Objects that hide each other, in the detector's map of colours.

The detector knows whole objects; of two that overlap it often sees one body. Their colours are
still told apart pixel by pixel.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..shapes.render import mask_of
from ..shapes.scene import Item
from ..shapes.vocabulary import COLORS

Array = npt.NDArray[Any]
Box = tuple[float, float, float, float]  # in sides of the picture

_LEAST = 16  # pixels of a piece, and of what two objects share
_NEAR = 0.02  # sides: boxes that far apart touch, since rims have neither colour


def pieces(colors: Array, name: str) -> list[Box]:
    """Boxes of the connected parts of a map `[h, w]` that have a colour, rims left out."""
    from scipy import ndimage

    mask = colors == list(COLORS).index(name)
    square = np.ones((3, 3), bool)
    core = ndimage.binary_erosion(mask, square, border_value=1)
    parts, _ = ndimage.label(ndimage.binary_dilation(core, square) & mask)
    height, width = mask.shape
    found = []
    for number, (rows, columns) in enumerate(ndimage.find_objects(parts), 1):
        if (parts[rows, columns] == number).sum() >= _LEAST:
            x0, x1 = columns.start / width, columns.stop / width
            found.append((x0, rows.start / height, x1, rows.stop / height))
    return found


def touch(some: Sequence[Box], others: Sequence[Box]) -> bool:
    """Test whether a box of the one list touches one of the other."""
    return any(
        all(a[k] < b[k + 2] + _NEAR and b[k] < a[k + 2] + _NEAR for k in (0, 1))
        for a in some
        for b in others
    )


def in_front(
    colors: Array, front: tuple[str, str, Array, Array], back: tuple[str, str, Array, Array]
) -> float:
    """Judge whether an object is seen where it overlaps with another: 1, 0; NaN if they hardly do.

    Args:
        colors: the map, `[h, w]`.
        front: what should be seen: its shape and colour, its centre and extent `[2]` in sides.
        back: the other one.
    """
    from scipy import ndimage

    common = ndimage.binary_erosion(
        _mask(front[0], *front[2:], colors.shape) & _mask(back[0], *back[2:], colors.shape)
    )
    if common.sum() < _LEAST:
        return float("nan")
    seen = colors[common]
    first, second = (np.mean(seen == list(COLORS).index(each[1])) for each in (front, back))
    return float(first > second)


def _mask(shape: str, centre: Array, extent: Array, size: tuple[int, ...]) -> Array:
    """Mask of an object, bool `[h, w]`."""
    height, width = size
    scale = np.array([width, height])
    picture = Image.new("L", (width, height))
    x, y = (int(v) for v in np.rint((centre - extent / 2) * scale))
    across, down = (max(1, int(v)) for v in np.rint(extent * scale))
    picture.paste(_outline(shape).resize((across, down)), (x, y))
    return np.asarray(picture) > 127


@cache
def _outline(shape: str) -> Image.Image:
    """A shape that fills its picture."""
    mask, _, _ = mask_of(Item(shape, "white", 0.5, 0.5, 0.8, 0.0, (255, 255, 255)), 128)
    return mask.crop(mask.getbbox())
