"""Words of the video world and the combinations of them that training never shows."""

from __future__ import annotations

from typing import Literal, get_args

from .timing import TIMING

Kind = Literal[
    "move", "bounce", "still", "past", "behind", "in_front", "cross", "turn", "move_turn", "count"
]
KINDS: tuple[Kind, ...] = get_args(Kind)
# x to the right, y downwards
DIRECTIONS: dict[str, tuple[int, int]] = {
    "left": (-1, 0),
    "right": (1, 0),
    "up": (0, -1),
    "down": (0, 1),
    "still": (0, 0),
}
MOVES = tuple(word for word, step in DIRECTIONS.items() if any(step))
OPPOSITE = {"left": "right", "right": "left", "up": "down", "down": "up"}
BOUNCES = {"left and right": 0, "top and bottom": 1}  # the axis
PASSES: dict[Kind, str] = {"past": "past", "behind": "behind", "in_front": "in front of"}
# the frame from which the new colour is seen: three, six and nine blocks of twelve are over
CUES = {"early": TIMING.frames(3), "": TIMING.frames(6), "late": TIMING.frames(9)}


def held_out_pass(direction: str, relation: str) -> bool:
    """Three of the twelve ways to pass another shape: in no training clip."""
    return (MOVES.index(direction) + 2 * list(PASSES.values()).index(relation)) % 5 == 0
