"""Words of the shapes world and the fixed list of combinations that training never shows.

Colours and task forms are GenEval's (Ghosh et al. 2023, section 3), so the same scorer reads both.
"""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "held_out"]
Task = Literal["single_object", "two_object", "counting", "colors", "position", "color_attr"]

TASKS: tuple[Task, ...] = get_args(Task)
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "heart", "crescent")
PLURALS = {shape: shape + ("es" if shape == "cross" else "s") for shape in SHAPES}
COLORS: dict[str, tuple[int, int, int]] = {
    "red": (214, 40, 40),
    "orange": (245, 130, 32),
    "yellow": (250, 220, 50),
    "green": (40, 160, 70),
    "blue": (40, 80, 210),
    "purple": (130, 60, 170),
    "pink": (250, 150, 190),
    "brown": (120, 72, 36),
    "black": (20, 20, 24),
    "white": (248, 248, 248),
}
RELATIONS = ("left of", "right of", "above", "below")
NUMBERS = {1: "one", 2: "two", 3: "three", 4: "four"}

_COLOR_NAMES = tuple(COLORS)


def held_out_color(shape: str, color: str) -> bool:
    """A fifth of the colour × shape pairs (16 of 80): never rendered in training."""
    return (3 * SHAPES.index(shape) + _COLOR_NAMES.index(color)) % 5 == 0


def held_out_pair(a: str, b: str) -> bool:
    """Unordered shape pairs (5 of 28) that never share a training scene."""
    return a != b and (SHAPES.index(a) + SHAPES.index(b)) % 5 == 0


def held_out_count(shape: str, count: int) -> bool:
    """Shape × count pairs (5 of 24 with two to four objects) that never occur in training."""
    return count > 1 and (SHAPES.index(shape) + count) % 5 == 0


def held_out_relation(a: str, relation: str, b: str) -> bool:
    """A fifth of the statements "a <relation> b": in no training caption, in neither direction.

    "a right of b" is the same statement as "b left of a", so both are brought to one form first.
    """
    if relation in ("right of", "below"):
        a, b = b, a
    axis = 0 if relation in ("left of", "right of") else 1
    return (SHAPES.index(a) + 2 * SHAPES.index(b) + 3 * axis) % 5 == 1
