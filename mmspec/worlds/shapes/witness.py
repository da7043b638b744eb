"""Pictures with mistakes, as a witness who sees badly would describe them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from .charts import HIGHEST, Chart, held_out_value
from .exchanges import Picture
from .scene import Item, Scene, shows_unseen
from .vocabulary import COLORS, SHAPES

_TRIES = 20


def mistaken(rng: np.random.Generator, picture: Picture, share: float) -> Picture:
    """The picture with every colour, shape, place and value wrong with probability `share`.

    The mistakes make nothing that training never shows; where that can't be had there are none.
    """
    for _ in range(_TRIES):
        if isinstance(picture, Chart):
            chart = _chart(rng, picture, share)
            if not any(map(held_out_value, chart.labels, chart.values)):
                return chart
        else:
            scene = _scene(rng, picture, share)
            if not shows_unseen(scene.items):
                return scene
    return picture


def _scene(rng: np.random.Generator, scene: Scene, share: float) -> Scene:
    colors = tuple(COLORS)
    items: list[Item] = []
    for item in scene.items:
        if rng.random() < share:
            item = replace(item, color=colors[int(rng.integers(len(colors)))])
        if rng.random() < share:
            item = replace(item, shape=SHAPES[int(rng.integers(len(SHAPES)))])
        items.append(item)
    if len(items) > 1 and rng.random() < share:  # two trade places
        a, b = (int(n) for n in rng.permutation(len(items))[:2])
        one, other = items[a], items[b]
        items[a] = replace(one, x=other.x, y=other.y, size=other.size)
        items[b] = replace(other, x=one.x, y=one.y, size=one.size)
    return replace(scene, items=tuple(items))


def _chart(rng: np.random.Generator, chart: Chart, share: float) -> Chart:
    labels, values = list(chart.labels), list(chart.values)
    for place in range(len(values)):
        free = [value for value in range(1, HIGHEST + 1) if value not in values]
        if rng.random() < share:
            values[place] = free[int(rng.integers(len(free)))]
    if rng.random() < share:  # two labels are taken for each other
        a, b = (int(n) for n in rng.permutation(len(labels))[:2])
        labels[a], labels[b] = labels[b], labels[a]
    return replace(chart, labels=tuple(labels), values=tuple(values))
