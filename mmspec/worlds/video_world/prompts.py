"""Captions of clips, with the facts that a judge reads.

| kind      | caption                                                                  |
|-----------|--------------------------------------------------------------------------|
| move      | a red circle moves right                                                 |
| bounce    | a red circle bounces between left and right                              |
| still     | a red circle stands still                                                |
| past      | a red circle moves right past a blue square                              |
| behind    | a red circle moves right behind a blue square                            |
| in_front  | a red circle moves right in front of a blue square                       |
| cross     | a red circle moves right and a blue square moves left                    |
| turn      | a green triangle turns yellow early (or late; halfway without a word)    |
| move_turn | a green triangle moves up and turns yellow                               |
| count     | three blue stars move up                                                 |

Captions stay true however long the clip is. What moves in a direction leaves the picture on that
side and comes back on the other; what bounces turns where it meets the edge; a colour turns once,
at a part of the first twelve blocks, and stays.

A reward of pictures sees a clip's caption with one frame. The frame decides shapes, colours and
counts. It can't decide which way something moves or whether it stands (`move`, `bounce`, `still`,
`cross`, `count`, and the motion in the others), nor whether a colour turns when it should (`turn`,
`move_turn`: of two colours that may be right one is wrong at that time); it decides `past`,
`behind` and `in_front` only while one shape passes the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..shapes.prompts import named, names_unseen
from ..shapes.vocabulary import COLORS, NUMBERS, PLURALS, SHAPES, Split, held_out_color
from .vocabulary import BOUNCES, CUES, DIRECTIONS, MOVES, OPPOSITE, PASSES, Kind, held_out_pass

_LEEWAY = 6  # frames by which a colour may turn too early or too late: half a block


@dataclass(frozen=True)
class ClipPrompt:
    """Caption, and what must be in the clip.

    `include` has GenEval's clauses (`class`, `count`, `color`) with more fields: `motion`, a word
    of `DIRECTIONS` or of `BOUNCES`; `turns`, the colour from the frame `cue` on; `passes`, a
    relation of `PASSES` and the index of the clause that is passed.
    """

    prompt: str
    tag: Kind
    include: list[dict[str, Any]]

    def metadata(self) -> dict[str, Any]:
        """The facts as a line of a list of prompts."""
        return asdict(self)


def sample_prompt(rng: np.random.Generator, kind: Kind, split: Split = "train") -> ClipPrompt:
    """Sample a prompt of a kind; a held-out one names a combination unseen in training."""
    while True:
        include = _draw(rng, kind)
        if unseen(include) == (split == "held_out"):
            return ClipPrompt(caption(include), kind, include)


def caption(include: list[dict[str, Any]]) -> str:
    """The words of a prompt."""
    first, last = include[0], include[-1]
    if first["count"] > 1:
        things = f"{first['color']} {PLURALS[first['class']]}"
        return f"{NUMBERS[first['count']]} {things} move {first['motion']}"
    told = [f"{named(clause)} {_does(clause)}" for clause in include]
    if "passes" in last:
        return f"{told[-1]} {last['passes'][0]} {named(first)}"
    return " and ".join(told)


def mirrored(prompt: ClipPrompt) -> ClipPrompt:
    """The prompt of the mirrored clip, where left is right."""
    include = [
        {**clause, "motion": OPPOSITE[clause["motion"]]}
        if clause["motion"] in ("left", "right")
        else clause
        for clause in prompt.include
    ]
    return ClipPrompt(caption(include), prompt.tag, include)


def unseen(include: list[dict[str, Any]]) -> bool:
    """Test whether a prompt names a combination that training never shows.

    They are those of the shapes world, for the colour before and after it turns, and those of
    `held_out_pass`.
    """
    for clause in include:
        if "turns" in clause and held_out_color(clause["class"], clause["turns"]):
            return True
        if "passes" in clause and held_out_pass(clause["motion"], clause["passes"][0]):
            return True
    return names_unseen(include)


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
        """Sign of its motion along its axis; 0 for what stands or bounces."""
        return sum(DIRECTIONS.get(self.motion, ()))

    @property
    def wraps(self) -> bool:
        """True if it leaves at an edge and comes back at the opposite one."""
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


def _does(clause: dict[str, Any]) -> str:
    motion = clause["motion"]
    does = []
    if motion in MOVES:
        does = [f"moves {motion}"]
    elif motion in BOUNCES:
        does = [f"bounces between {motion}"]
    elif "turns" not in clause:
        does = ["stands still"]
    if "turns" in clause:
        when = next(word for word, frame in CUES.items() if frame == clause["cue"])
        does.append(f"turns {clause['turns']} {when}".rstrip())
    return " and ".join(does)


def _draw(rng: np.random.Generator, kind: Kind) -> list[dict[str, Any]]:
    """The clauses of a prompt drawn freely; what stands comes before what passes it."""
    a, b = (SHAPES[int(i)] for i in rng.permutation(len(SHAPES))[:2])
    color, other_color = (tuple(COLORS)[int(i)] for i in rng.permutation(len(COLORS))[:2])
    motion = MOVES[int(rng.integers(len(MOVES)))]
    if kind == "bounce":
        motion = tuple(BOUNCES)[int(rng.integers(len(BOUNCES)))]
    elif kind in ("still", "turn"):
        motion = "still"
    clause: dict[str, Any] = {"class": a, "count": 1, "color": color, "motion": motion}
    other: dict[str, Any] = {"class": b, "count": 1, "color": other_color, "motion": "still"}
    if kind in PASSES:
        return [other, {**clause, "passes": [PASSES[kind], 0]}]
    if kind == "cross":
        return [clause, {**other, "motion": OPPOSITE[motion]}]
    if kind in ("turn", "move_turn"):
        cue = tuple(CUES.values())[int(rng.integers(len(CUES)))]
        return [{**clause, "turns": other_color, "cue": cue}]
    if kind == "count":
        return [{**clause, "count": int(rng.integers(2, 4))}]
    return [clause]
