"""Facts of a scene in words: place and size of its objects, and its background.

Words of place and size have soft edges. A fact is *said* only where it is clear, and *holds* a
little beyond, so that a reader who sees well is never called wrong.
"""

from __future__ import annotations

import math

import numpy as np

from .scene import Background, Item

OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
_CLEAR, _LOOSE = 2.0, 0.5  # offset along the relation's axis, over that along the other
_APART = 1.12  # ratio of two sizes that differ clearly
Bounds = tuple[tuple[float, float], tuple[float, float]]
# word: where it is said, where it holds, as bounds of a coordinate, a size or a cast
_LOW, _MIDDLE, _HIGH = (
    ((0.0, 0.40), (0.0, 0.47)),
    ((0.44, 0.56), (0.38, 0.62)),
    ((0.60, 1.0), (0.53, 1.0)),
)
COLUMNS: dict[str, Bounds] = {"left": _LOW, "centre": _MIDDLE, "right": _HIGH}
ROWS: dict[str, Bounds] = {"top": _LOW, "middle": _MIDDLE, "bottom": _HIGH}
SIZES: dict[str, Bounds] = {
    "small": ((0.0, 0.28), (0.0, 0.31)),
    "medium": ((0.31, 0.35), (0.28, 0.38)),
    "large": ((0.38, 1.0), (0.35, 1.0)),
}
TONES: dict[str, Bounds] = {  # of a cast
    "cool": ((14.0, 255.0), (7.0, 255.0)),
    "warm": ((-255.0, -14.0), (-255.0, -7.0)),
    "neutral": ((-4.0, 4.0), (-11.0, 11.0)),
}
_GRADED = (14.0, 5.0)  # rise of brightness over the picture, in RGB steps: said, holds
SIDES = {"right": (1.0, 0.0), "left": (-1.0, 0.0), "bottom": (0.0, 1.0), "top": (0.0, -1.0)}

ACROSS = {"right": "left", "left": "right", "bottom": "top", "top": "bottom"}


def relation(a: Item, b: Item) -> str | None:
    """Relation in which `a` clearly stands to `b`; None if that is a matter of taste."""
    dx, dy = a.x - b.x, a.y - b.y
    if abs(dx) >= _CLEAR * abs(dy):
        return "left of" if dx < 0 else "right of"
    if abs(dy) >= _CLEAR * abs(dx):
        return "above" if dy < 0 else "below"
    return None


def relation_holds(a: Item, name: str, b: Item) -> bool:
    """Test whether `a` can be called `name` of `b`."""
    dx, dy = a.x - b.x, a.y - b.y
    along, across = (dx, dy) if name in ("left of", "right of") else (dy, dx)
    toward = -along if name in ("left of", "above") else along
    return toward > 0 and toward >= _LOOSE * abs(across)


def said(value: float, words: dict[str, Bounds]) -> str | None:
    """Word that is clear for a value: a coordinate, a size or a cast; None between two words."""
    return next((word for word, ((low, high), _) in words.items() if low <= value <= high), None)


def holds(value: float, bounds: Bounds) -> bool:
    """Test whether a word with these bounds can be said of a value."""
    low, high = bounds[1]
    return low <= value <= high


def place(item: Item) -> tuple[str | None, str | None]:
    """Column and row of the picture that an item clearly stands in, None where it is between."""
    return said(item.x, COLUMNS), said(item.y, ROWS)


def place_holds(item: Item, word: str) -> bool:
    """Test whether an item can be said to stand in a column or row."""
    return holds(item.x, COLUMNS[word]) if word in COLUMNS else holds(item.y, ROWS[word])


def size_holds(item: Item, word: str) -> bool:
    """Test whether an item can be called of that size."""
    return holds(item.size, SIZES[word])


def larger(a: Item, b: Item) -> bool | None:
    """Test whether `a` is clearly the larger; None if the two are much alike."""
    if max(a.size, b.size) < _APART * min(a.size, b.size):
        return None
    return a.size > b.size


def extreme(items: tuple[Item, ...], word: str) -> Item | None:
    """The item that is clearly the "largest" or "smallest" of two or more, None if none is."""
    ordered = sorted(items, key=lambda item: item.size, reverse=word == "largest")
    if len(items) < 2 or larger(ordered[0], ordered[1]) is None:
        return None
    return ordered[0]


def cast(background: Background) -> float:
    """Cast of the background: blue less red, in RGB steps."""
    return (background.start[2] + background.end[2] - background.start[0] - background.end[0]) / 2


def lighter_side(background: Background) -> str | None:
    """The side towards which the background clearly grows lighter."""
    rise = _rise(background)
    for side, way in SIDES.items():
        along = float(rise @ way)
        across = math.sqrt(max(0.0, float(rise @ rise) - along * along))
        if along > _GRADED[0] and along >= _CLEAR * across:
            return side
    return None


def lighter_holds(background: Background, side: str) -> bool:
    """Test whether the background can be said to grow lighter towards a side."""
    return float(_rise(background) @ SIDES[side]) > _GRADED[1]


def _rise(background: Background) -> np.ndarray:
    """Rise of the picture's brightness from left to right and from top to bottom."""
    step = (sum(background.end) - sum(background.start)) / 3 / 1.2  # the gradient spans 1.2 sides
    return step * np.array([math.cos(background.direction), math.sin(background.direction)])
