"""Scenes of any one to four objects, of very different sizes: what questions are asked about."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from .scene import Item, Scene, draw_background, draw_item
from .vocabulary import COLORS, SHAPES, Split, held_out_color, held_out_count, held_out_pair

MOST = 4  # objects of a scene
_SIZES = (0.22, 0.44)  # of the side of the picture
_GAP = 0.03  # between the boxes of two objects, and to the border


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
    centres, sizes = _place(rng, count)
    items = tuple(
        draw_item(rng, shape, color, centre, float(size), split)
        for shape, color, centre, size in zip(shapes, colors, centres, sizes, strict=True)
    )
    return Scene(items, draw_background(rng))


def shows_unseen(items: tuple[Item, ...]) -> bool:
    """Whether some colour of a shape, number of a shape or pair of shapes is never trained on."""
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


def _place(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Centres `[n, 2]` and sizes `[n]` without overlap, the largest object placed first."""
    while True:
        sizes = np.sort(rng.uniform(*_SIZES, n))[::-1]
        centres: list[np.ndarray] = []
        for size in sizes:
            margin = size / 2 + _GAP
            tries = rng.uniform(margin, 1 - margin, (16, 2))
            need = (size + sizes[: len(centres)]) / 2 + _GAP
            gaps = [np.abs(tries - centre).max(-1) for centre in centres]  # Chebyshev distance
            free = np.all([g >= least for g, least in zip(gaps, need, strict=True)], axis=0)
            if not np.any(free):
                break
            centres.append(tries[int(np.argmax(free))])
        if len(centres) == n:
            shuffled = rng.permutation(n)
            return np.stack(centres)[shuffled], sizes[shuffled]
