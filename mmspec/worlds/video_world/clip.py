"""Clips: what is where in every frame, drawn so that a prompt is true of it for ever."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from ..shapes.render import paint, render
from ..shapes.scene import Background, Item, Scene, draw_background, draw_item
from ..shapes.vocabulary import Split
from .prompts import ClipPrompt, sample_prompt
from .vocabulary import BOUNCES, DIRECTIONS, KINDS, Kind

_SPEEDS = (0.010, 0.020)  # sides of the picture a frame: a seventh or so a block
_SIZES = {1: (0.28, 0.40), 2: (0.26, 0.36), 3: (0.26, 0.29)}
_MARGIN = 0.02  # between a whole object and the edge
_GAP = 0.03  # between two objects
_ABREAST = 0.04  # how far equal objects that move together are ahead of each other
_OFF_CENTRE = 0.2  # of the smaller size: how far off centre one object hides another
_STREAM = 50_000  # of the held-out list's seeds, apart from those of training
_DRAWS = 20  # of a held-out prompt, before one is told again


@dataclass(frozen=True)
class Mover:
    """An object of a clip.

    Attributes:
        item: what it is at first and where in frame 0.
        velocity: `(x, y)` in sides of the picture a frame.
        bounces: it turns at the edges; else it leaves at one and comes back at the opposite one.
        turned: what it is from frame `cue` on, if it turns.
    """

    item: Item
    velocity: tuple[float, float] = (0.0, 0.0)
    bounces: bool = False
    turned: Item | None = None
    cue: int = 0

    def at(self, frame: int) -> Item:
        """The object in a frame; its centre is in the picture."""
        item = self.turned if self.turned and frame >= self.cue else self.item
        return replace(item, x=self._place(0, frame), y=self._place(1, frame))

    def drawn(self, frame: int) -> list[Item]:
        """The object, and again what comes back of it at the opposite edge."""
        item = self.at(frame)
        reach = 0.6 * item.size + _MARGIN  # outlines go a little over half a size
        shown = [item]
        if not self.bounces:
            for axis, name in enumerate("xy"):
                place = getattr(item, name)
                if self.velocity[axis] and not reach <= place <= 1 - reach:
                    shown.append(replace(item, **{name: place + (1 if place < 0.5 else -1)}))
        return shown

    def _place(self, axis: int, frame: int) -> float:
        start, speed = (self.item.x, self.item.y)[axis], self.velocity[axis]
        if not speed:
            return start
        if not self.bounces:
            return (start + speed * frame) % 1
        low = self.item.size / 2 + _MARGIN
        span = 1 - 2 * low
        return low + span - abs((start - low + speed * frame) % (2 * span) - span)


@dataclass(frozen=True)
class Clip:
    """A moving scene: any frame follows from its number, counted from 0.

    Attributes:
        movers: its objects, those in front last.
    """

    movers: tuple[Mover, ...]
    background: Background

    def items(self, frame: int) -> tuple[Item, ...]:
        """Objects in a frame, those in front last."""
        return tuple(mover.at(frame) for mover in self.movers)


def sample_clip(rng: np.random.Generator, prompt: ClipPrompt) -> Clip:
    """A clip of which `prompt` is true, in front of two tones that flow into each other.

    In frame 0 all objects are whole and apart.
    """
    wanted = [clause for clause in prompt.include for _ in range(clause["count"])]
    sizes = rng.uniform(*_SIZES[len(wanted)], len(wanted))
    if prompt.tag == "count":
        sizes[:] = sizes[0]
    motion = prompt.include[-1]["motion"]
    axis = BOUNCES[motion] if motion in BOUNCES else int(DIRECTIONS[motion][1] != 0)
    along, across = _place(rng, prompt, sizes)
    centres = np.stack([along, across] if axis == 0 else [across, along], -1)
    movers = [_mover(rng, *each) for each in zip(wanted, centres, sizes, strict=True)]
    if prompt.tag == "count":
        movers = [replace(mover, velocity=movers[0].velocity) for mover in movers]
    if prompt.tag == "behind":  # clauses name first what stands
        movers.reverse()
    return Clip(tuple(movers), replace(draw_background(rng), texture="plain"))


def sample(rng: np.random.Generator, kind: Kind, split: Split = "train") -> tuple[ClipPrompt, Clip]:
    """A prompt of a kind and a clip that shows it."""
    prompt = sample_prompt(rng, kind, split)
    return prompt, sample_clip(rng, prompt)


@dataclass(frozen=True)
class HeldOutClip:
    """A line of the list of held-out prompts.

    Attributes:
        id: unique in its list.
        seed: of the generator, with which `sample` gives the prompt and a clip that shows it.
    """

    id: str
    seed: tuple[int, ...]
    prompt: ClipPrompt

    def line(self) -> dict[str, Any]:
        """Line of the file."""
        return {"id": self.id, "seed": list(self.seed), **self.prompt.metadata()}


def held_out_clips(number: int, seed: int = 0) -> Iterator[HeldOutClip]:
    """Prompts with what training never shows, the kinds in turn, none twice while a kind has more.

    A hundred of them are `assets/prompts/clips.jsonl`; 20 of seed 7, none of them the same, are
    `clips-tuning.jsonl`, by which thresholds are chosen.
    """
    told: set[str] = set()
    for place in range(number):
        kind = KINDS[place % len(KINDS)]
        for draw in range(_DRAWS):
            key = (_STREAM, seed, place, draw)
            prompt, _ = sample(np.random.default_rng(key), kind, "held_out")
            if prompt.prompt not in told:
                break
        told.add(prompt.prompt)
        yield HeldOutClip(f"{kind}-{place}", key, prompt)


def render_clip(clip: Clip, frames: int | range, resolution: int = 64) -> np.ndarray:
    """RGB frames `[T, resolution, resolution, 3]`, uint8.

    Args:
        frames: how many from the first, or which; a window alone is what it is in the whole clip.
        resolution: side of a frame in pixels.
    """
    numbers = range(frames) if isinstance(frames, int) else frames
    empty = Image.fromarray(render(Scene((), clip.background), resolution))
    video = np.empty((len(numbers), resolution, resolution, 3), np.uint8)
    for place, number in enumerate(numbers):
        picture = empty.copy()
        for mover in clip.movers:
            for item in mover.drawn(number):
                paint(picture, item)
        video[place] = np.asarray(picture)
    return video


def _mover(
    rng: np.random.Generator, clause: dict[str, Any], centre: np.ndarray, size: float
) -> Mover:
    """Draw one object of a clause at its place in frame 0, at a speed of its own."""
    shape, motion = clause["class"], clause["motion"]
    item = draw_item(rng, shape, clause["color"], centre, size, "held_out")
    speed, bounces = rng.uniform(*_SPEEDS), motion in BOUNCES
    step = [0.0, 0.0]
    if bounces:
        step[BOUNCES[motion]] = (-1) ** int(rng.integers(2))
    else:
        step[:] = DIRECTIONS[motion]
    velocity = (float(step[0] * speed), float(step[1] * speed))
    if "turns" not in clause:
        return Mover(item, velocity, bounces)
    tint = draw_item(rng, shape, clause["turns"], centre, size, "held_out").tint
    turned = replace(item, color=clause["turns"], tint=tint)
    return Mover(item, velocity, bounces, turned, clause["cue"])


def _place(
    rng: np.random.Generator, prompt: ClipPrompt, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Centres in frame 0, `[n]` along the axis of motion and `[n]` across it."""
    margin = sizes / 2 + _MARGIN
    along = rng.uniform(margin, 1 - margin)
    if prompt.tag == "count":
        start = rng.uniform(margin[0] + _ABREAST, 1 - margin[0] - _ABREAST)
        along = start + rng.uniform(-_ABREAST, _ABREAST, len(sizes))
    if prompt.tag not in ("behind", "in_front"):
        return along, _lanes(rng, sizes)
    while abs(along[0] - along[1]) < sizes.mean() + _GAP:
        along = rng.uniform(margin, 1 - margin)
    across = np.full(2, rng.uniform(margin.max(), 1 - margin.max()))
    across[1] += rng.uniform(-_OFF_CENTRE, _OFF_CENTRE) * sizes.min()
    return along, np.clip(across, margin, 1 - margin)


def _lanes(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Places `[n]` of objects side by side, in any order, gaps at random."""
    order = rng.permutation(len(sizes))
    room = 1 - 2 * _MARGIN - sizes.sum() - _GAP * (len(sizes) - 1)
    before = np.concatenate([[0], np.cumsum(sizes[order] + _GAP)[:-1]])  # of objects and gaps
    lanes = np.empty(len(sizes))
    shifts = np.sort(rng.uniform(0, room, len(sizes)))
    lanes[order] = _MARGIN + before + sizes[order] / 2 + shifts
    return lanes
