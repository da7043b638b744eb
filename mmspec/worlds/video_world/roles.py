"""Roles: the demands of each clause of a clip's prompt on its objects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .vocabulary import BOUNCES, DIRECTIONS, MOVES

_LEEWAY = 6  # frames by which a colour may turn too early or too late: half a block


@dataclass(frozen=True)
class Role:
    """A clause of a prompt: one object, or several that are equal.

    Attributes:
        motion: a word of `DIRECTIONS` or of `BOUNCES`.
        turned: its colour from frame `cue` on, if it turns.
        overlaps: it passes behind or in front of something, or is passed so.
    """

    shape: str
    color: str
    count: int
    motion: str
    turned: str | None
    cue: int
    overlaps: bool

    @property
    def axis(self) -> int | None:
        """The axis that it moves along."""
        if self.motion in BOUNCES:
            return BOUNCES[self.motion]
        return MOVES.index(self.motion) // 2 if self.wraps else None

    @property
    def sign(self) -> int:
        """Whether it moves up or down its axis; 0 for what stands or bounces."""
        return sum(DIRECTIONS.get(self.motion, ()))

    @property
    def wraps(self) -> bool:
        """Whether it leaves at an edge and comes back at the opposite one."""
        return self.motion in MOVES

    def colors(self, frame: int) -> tuple[str, ...]:
        """The colours that are right in a frame."""
        if self.turned is None or frame < self.cue - _LEEWAY:
            return (self.color,)
        if frame >= self.cue + _LEEWAY:
            return (self.turned,)
        return self.color, self.turned


def roles_of(include: Sequence[dict[str, Any]]) -> list[Role]:
    """The roles of a prompt's clauses."""
    overlaps = any(clause.get("passes", ["past"])[0] != "past" for clause in include)
    return [
        Role(
            clause["class"],
            clause["color"],
            clause["count"],
            clause["motion"],
            clause.get("turns"),
            clause.get("cue", 0),
            overlaps,
        )
        for clause in include
    ]
