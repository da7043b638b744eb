"""Judge of clips: compares each frame with the prompt by the shapes world's detector alone.

The judge shares nothing with any reward model, so it can tell what routing by a reward is worth.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .actor import Actor, Bodies, View
from .occlusion import in_front, touch
from .prompts import ClipPrompt, roles_of
from .sightings import SURE, is_piece, is_whole
from .vocabulary import TIMING, Timing

Array = npt.NDArray[Any]

_DEEP = 0.25  # of both extents: nearer along the motion, one is passing the other
_MEET = 0.4  # of both extents: nearer across the motion, they overlap as they pass


@dataclass(frozen=True)
class ClipScore:
    """Scores of a clip for its prompt; every number is between 0 and 1.

    Attributes:
        attributes: of each frame, `[T]`: the objects that are there in the right shape and colour,
            over those wanted and those too many (Jaccard's index).
        motion: of each frame, `[T]`: the share of the objects that are there and have moved as they
            should.
        order: of each frame, `[T]`: whether two objects pass the stated way; NaN where none pass.
        blocks: of each block, `[B]`: the product of the means of the three over its frames.
        score: of the clip, the mean over its blocks.
    """

    attributes: Array
    motion: Array
    order: Array
    blocks: Array
    score: float


def judge(frames: Array, prompt: ClipPrompt, first: int = 0, timing: Timing = TIMING) -> ClipScore:
    """Scores a clip, or a window of one.

    A block scores the product of its three means, since the wrong object in the right motion is not
    half of what was asked; a clip scores the mean of its blocks, since a router accepts or rejects
    them one by one. Apart from the objects' usual sizes and the places of hidden ones, a block's
    score depends on itself and what came before: motion is the displacement over the last six
    frames, so a block that does not go on from the one before it loses half of its motion. What
    frames can't show counts for nothing: the shape of an object that crosses the picture's edge or
    overlaps with another, and the place of a hidden one. A window must show objects that pass in
    full view once, as the first frame of a clip does.

    Args:
        frames: RGB `[T, H, W, 3]`, uint8, square.
        first: number of the first frame in the whole clip.
        timing: which frames a block is.

    Raises:
        ValueError: no frames, or frames of another form.
    """
    if frames.ndim != 4 or not len(frames) or frames.shape[1] != frames.shape[2]:
        raise ValueError(f"expected square frames [T, H, W, 3], got {list(frames.shape)}")
    return judge_views([View.of(frame) for frame in frames], prompt, first, timing)


def judge_views(
    views: Sequence[View], prompt: ClipPrompt, first: int = 0, timing: Timing = TIMING
) -> ClipScore:
    """`judge` of what is seen, so that one clip is judged by many prompts at little cost."""
    roles = roles_of(prompt.include)
    bodies = [view.bodies(roles) for view in views]
    actors = [Actor(roles, index, views, bodies, first) for index in range(len(roles))]
    hidden = [_hidden(actor, actors) for actor in actors]
    attributes = _attributes(actors, views, bodies, hidden, first)
    moves = [actor.motion(each) for actor, each in zip(actors, hidden, strict=True)]
    motion = np.concatenate(moves).mean(0)
    order = _order(actors, views, prompt)
    block_of = np.array([timing.block_of(first + time) for time in range(len(views))])
    blocks = []
    for block in np.unique(block_of):
        inside = block_of == block
        passing = order[inside & np.isfinite(order)]
        in_order = passing.mean() if len(passing) else 1.0
        blocks.append(attributes[inside].mean() * motion[inside].mean() * in_order)
    return ClipScore(attributes, motion, order, np.array(blocks), float(np.mean(blocks)))


def _attributes(
    actors: Sequence[Actor],
    views: Sequence[View],
    bodies: Sequence[Bodies | None],
    hidden: Sequence[Array],
    first: int,
) -> Array:
    """Jaccard's index of the wanted objects and those seen, `[T]`."""
    wanted = sum(actor.role.count for actor in actors)
    scores = []
    for time, (view, pair) in enumerate(zip(views, bodies, strict=True)):
        frame = first + time
        there = excess = 0
        for actor, out_of_sight in zip(actors, hidden, strict=True):
            seen = len(actor.seen[time])
            there += min(actor.role.count, seen) + out_of_sight[time]
            excess += max(seen - actor.role.count, 0)
        for hit in view.hits:
            if hit.confidence <= SURE or (pair and any(touch([hit.box], body) for body in pair)):
                continue  # the detector takes two objects for one
            excess += not any(
                is_whole(hit, actor.role, frame) or is_piece(hit, actor.role, frame, actor.extent)
                for actor in actors
            )
        scores.append(there / (wanted + excess))
    return np.array(scores)


def _hidden(actor: Actor, actors: Sequence[Actor]) -> Array:
    """Mark frames where an object that is not seen should be behind another one, `[T]` bool."""
    found = np.zeros(len(actor.seen), bool)
    for front in actors:
        if front is actor or not actor.role.overlaps:
            continue
        near = (np.abs(front.apart(actor)) < front.extent / 2).all(1)
        found |= near & np.array([bool(seen) for seen in front.seen])
    return np.asarray(found & ~np.array([bool(seen) for seen in actor.seen]))


def _order(actors: Sequence[Actor], views: Sequence[View], prompt: ClipPrompt) -> Array:
    """Judge whether two objects pass as stated, `[T]`, NaN where none do or it can't be seen."""
    mover = actors[-1]
    order = np.full(len(views), np.nan)
    relation, anchor = prompt.include[-1].get("passes", ("", 0))
    axis, stands = mover.role.axis, actors[anchor]
    if not relation or axis is None:
        return order
    apart = np.abs(stands.apart(mover)) / (mover.extent + stands.extent)  # in extents of both
    passing, meet = apart[:, axis] < _DEEP, apart[:, 1 - axis] < _MEET
    if relation == "past":
        order[passing] = ~meet[passing]
        return order
    order[passing & ~meet] = 0
    front, back = (stands, mover) if relation == "behind" else (mover, stands)
    for time in np.flatnonzero(passing & meet).tolist():
        sides = [
            (each.role.shape, each.role.color, each.paths[0][time] % 1, each.extent)
            for each in (front, back)
        ]
        order[time] = in_front(views[time].colors, *sides)
    return order
