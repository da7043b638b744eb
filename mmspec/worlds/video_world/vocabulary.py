"""Words of the video world, its time, and the combinations that training never shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

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


@dataclass(frozen=True)
class Timing:
    """A causal video autoencoder's first latent frame is one frame, every later one is `factor`.

    Attributes:
        latents: latent frames a block.
        factor: frames a latent frame.
    """

    latents: int = 3
    factor: int = 4

    def frames(self, blocks: int) -> int:
        """Frames that the first `blocks` blocks have together: 9, 21, 33 and so on."""
        return 1 + self.factor * (self.latents * blocks - 1) if blocks else 0

    def span(self, block: int) -> range:
        """The frames of a block, both counted from 0."""
        return range(self.frames(block), self.frames(block + 1))

    def block_of(self, frame: int) -> int:
        """The block that a frame belongs to, both counted from 0."""
        return -(-frame // self.factor) // self.latents


TIMING = Timing()
# the frame from which the new colour is seen: three, six and nine blocks of twelve are over
CUES = {"early": TIMING.frames(3), "": TIMING.frames(6), "late": TIMING.frames(9)}


def held_out_pass(direction: str, relation: str) -> bool:
    """Three of the twelve ways to pass another shape: in no training clip."""
    return (MOVES.index(direction) + 2 * list(PASSES.values()).index(relation)) % 5 == 0
