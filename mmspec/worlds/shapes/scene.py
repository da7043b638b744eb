"""Scenes: what is in a picture and where.

They are drawn so that a prompt is true of them, or mixed, of any one to four objects of very
different sizes: those are what questions are asked about.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from .prompts import Prompt, sample_prompt
from .vocabulary import (
    COLORS,
    SHAPES,
    Split,
    Task,
    held_out_color,
    held_out_count,
    held_out_pair,
)

T = TypeVar("T")
TEXTURES = ("plain", "stripes", "checks", "dots", "clouds")
# Low-chroma middle tones: none is near one of the ten object colours.
BACKGROUNDS = (
    (128, 142, 156),
    (150, 160, 150),
    (168, 158, 146),
    (150, 142, 160),
    (140, 140, 140),
    (122, 148, 150),
)
MOST = 4  # objects of a scene
_MIXED_SIZES = (0.22, 0.44)  # of the side of the picture
_MIXED_GAP = 0.03  # between the boxes of two objects, and to the border
_SIZES = {1: (0.36, 0.54), 2: (0.30, 0.42), 3: (0.27, 0.35), 4: (0.26, 0.33)}


@dataclass(frozen=True)
class Item:
    """Object of a scene; centre `x, y` and bounding side `size` in sides of the picture."""

    shape: str
    color: str
    x: float
    y: float
    size: float
    angle: float  # degrees
    tint: tuple[int, int, int]  # the colour as drawn, RGB 0..255


@dataclass(frozen=True)
class Background:
    """A linear gradient between two tones with a texture over it."""

    start: tuple[int, int, int]
    end: tuple[int, int, int]
    direction: float  # radians
    texture: str
    amplitude: float  # in RGB steps
    period: float  # fraction of the side
    phase: float
    seed: int


@dataclass(frozen=True)
class Scene:
    items: tuple[Item, ...]
    background: Background


def sample_scene(rng: np.random.Generator, prompt: Prompt, split: Split = "train") -> Scene:
    """A scene of which `prompt` is true.

    With split "train", colours that the prompt leaves open are drawn from the pairs that training
    may show; a held-out scene draws them freely.
    """
    wanted = [need for need in prompt.include for _ in range(need["count"])]
    relation = next((need["position"][0] for need in prompt.include if "position" in need), None)
    centres, sizes = _place(rng, len(wanted), relation)
    items = tuple(
        draw_item(rng, need["class"], need.get("color"), centre, size, split)
        for need, centre, size in zip(wanted, centres, sizes, strict=True)
    )
    return Scene(items, draw_background(rng))


def in_turn(rng: np.random.Generator, kinds: Sequence[T], size: int) -> list[T]:
    """`size` kinds that take turns from a random one on, so that a batch is balanced."""
    first = int(rng.integers(len(kinds)))
    return [kinds[(first + number) % len(kinds)] for number in range(size)]


def sample(rng: np.random.Generator, task: Task, split: Split = "train") -> tuple[Prompt, Scene]:
    """A prompt of `task` and a scene that shows it."""
    prompt = sample_prompt(rng, task, split)
    return prompt, sample_scene(rng, prompt, split)


def draw_item(
    rng: np.random.Generator,
    shape: str,
    color: str | None,
    centre: np.ndarray,
    size: float,
    split: Split,
) -> Item:
    """A `shape` of side `size` about `centre`; a colour that is None is drawn as `split` allows."""
    if shape not in SHAPES:
        raise ValueError(f"unknown shape {shape!r}; the shapes world has {', '.join(SHAPES)}")
    if color is None:
        options = [c for c in COLORS if split == "held_out" or not held_out_color(shape, c)]
        color = options[int(rng.integers(len(options)))]
    tint = np.clip(np.array(COLORS[color]) + rng.integers(-8, 9, 3), 0, 255)
    return Item(
        shape,
        color,
        float(centre[0]),
        float(centre[1]),
        float(size),
        float(rng.uniform(-8, 8)),
        (int(tint[0]), int(tint[1]), int(tint[2])),
    )


def _place(rng: np.random.Generator, n: int, relation: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Centres `[n, 2]` and sizes `[n]` without overlap; item 1 stands `relation` item 0."""
    low, high = _SIZES[n]
    while True:
        sizes = rng.uniform(low, high, n)
        margin = sizes / 2 + 0.02
        centres = rng.uniform(margin[:, None], 1 - margin[:, None], (n, 2))
        if relation is not None:
            centres = _relate(rng, centres, sizes, relation)
        gaps = np.abs(centres[:, None] - centres[None]).max(-1)  # boxes, Chebyshev distance
        need = (sizes[:, None] + sizes[None]) / 2 + 0.03
        if np.all(gaps + 9 * np.eye(n) >= need):
            return centres, sizes


def _relate(
    rng: np.random.Generator, centres: np.ndarray, sizes: np.ndarray, relation: str
) -> np.ndarray:
    """Two centres, item 1 clearly `relation` item 0 and the other axis nearly level."""
    axis = 0 if relation in ("left of", "right of") else 1
    order = [1, 0] if relation in ("left of", "above") else [0, 1]
    centres = centres.copy()
    centres[order, axis] = np.sort(centres[:, axis])
    centres[1, 1 - axis] = centres[0, 1 - axis] + rng.uniform(-0.12, 0.12)
    margin = (sizes / 2 + 0.02)[:, None]  # the two may have traded places along the axis
    return np.asarray(np.clip(centres, margin, 1 - margin))


def draw_background(rng: np.random.Generator) -> Background:
    """Two tones near a base tone, graded any way, under a faint texture."""
    base = np.array(BACKGROUNDS[int(rng.integers(len(BACKGROUNDS)))])
    tones = [
        np.clip(base + rng.integers(-6, 7, 3) + rng.integers(-18, 19), 95, 185) for _ in range(2)
    ]
    start, end = ((int(t[0]), int(t[1]), int(t[2])) for t in tones)
    return Background(
        start,
        end,
        float(rng.uniform(0, 2 * np.pi)),
        TEXTURES[int(rng.integers(len(TEXTURES)))],
        float(rng.uniform(5, 11)),
        float(rng.uniform(0.16, 0.3)),
        float(rng.uniform(0, 1)),
        int(rng.integers(2**31)),
    )


def sample_mixed(
    rng: np.random.Generator, split: Split = "train", count: int | None = None
) -> Scene:
    """A scene of `count` objects (None: one to four).

    Colours and shapes come again more often than chance would have it, so that counting them and
    telling objects apart is not idle. A training scene shows no combination that is held out, a
    held-out scene at least one.
    """
    count = count or int(rng.integers(1, MOST + 1))
    while True:
        shapes, colors = _few(rng, SHAPES, count), _few(rng, tuple(COLORS), count)
        if _unseen(shapes, colors) == (split == "held_out"):
            break
    centres, sizes = _place_mixed(rng, count)
    items = tuple(
        draw_item(rng, shape, color, centre, float(size), split)
        for shape, color, centre, size in zip(shapes, colors, centres, sizes, strict=True)
    )
    return Scene(items, draw_background(rng))


def shows_unseen(items: tuple[Item, ...]) -> bool:
    """Test whether a colour or number of a shape, or a pair of shapes, is never trained on."""
    return _unseen([item.shape for item in items], [item.color for item in items])


def _unseen(shapes: list[str], colors: list[str]) -> bool:
    return (
        any(held_out_color(*pair) for pair in zip(shapes, colors, strict=True))
        or any(held_out_count(shape, n) for shape, n in Counter(shapes).items())
        or any(held_out_pair(a, b) for a, b in itertools.combinations(shapes, 2))
    )


def _few(rng: np.random.Generator, names: tuple[str, ...], count: int) -> list[str]:
    """`count` names out of a random number of different ones."""
    kinds = rng.permutation(len(names))[: rng.integers(1, count + 2, 2).max()]
    return [names[int(kind)] for kind in kinds[rng.integers(len(kinds), size=count)]]


def _place_mixed(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres `[n, 2]` and sizes `[n]` without overlap, the largest object placed first."""
    while True:
        sizes = np.sort(rng.uniform(*_MIXED_SIZES, n))[::-1]
        centres: list[np.ndarray] = []
        for size in sizes:
            margin = size / 2 + _MIXED_GAP
            tries = rng.uniform(margin, 1 - margin, (16, 2))
            need = (size + sizes[: len(centres)]) / 2 + _MIXED_GAP
            gaps = [np.abs(tries - centre).max(-1) for centre in centres]  # Chebyshev distance
            free = np.all([g >= least for g, least in zip(gaps, need, strict=True)], axis=0)
            if not np.any(free):
                break
            centres.append(tries[int(np.argmax(free))])
        if len(centres) == n:
            shuffled = rng.permutation(n)
            return np.stack(centres)[shuffled], sizes[shuffled]
