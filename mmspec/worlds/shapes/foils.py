"""Captions that are nearly right: one fact of a prompt changed, so that it is false of the picture.

They teach and test what a contrast between random captions leaves out: which colour belongs to
which shape, how many there are, and where (Yuksekgonul et al. 2023, "When and why vision-language
models behave like bags-of-words", section 4).
"""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import numpy as np

from .prompts import Prompt, caption, names_unseen
from .scene import Scene
from .vocabulary import COLORS, RELATIONS, SHAPES, Split


def foil(rng: np.random.Generator, prompt: Prompt, split: Split = "train") -> str:
    """A caption of the same form that is false of every scene of `prompt`.

    With split "train" it names no combination that is held out: else such combinations would only
    ever be seen in captions that are wrong.
    """
    while True:
        include = deepcopy(prompt.include)
        edits = [_replace_shape]
        if prompt.tag == "counting":
            edits.append(_recount)
        if "color" in include[0]:
            edits.append(_recolor)
            if len(include) == 2:
                edits.append(_swap_colors)
        if prompt.tag == "position":
            edits.append(_turn)
        edits[int(rng.integers(len(edits)))](rng, include)
        if split == "held_out" or not names_unseen(include):
            assert prompt.tag
            return caption(prompt.tag, include)


def may_hold(prompt: Prompt, scene: Scene) -> bool:
    """Test whether `prompt` may be true of `scene`; statements of place get the benefit of doubt.

    A contrast must not count such a caption as wrong, though it is another picture's.
    """
    shapes = Counter(item.shape for item in scene.items)
    if shapes != Counter({c["class"]: c["count"] for c in prompt.include}):
        return False
    drawn = {(item.shape, item.color) for item in scene.items}
    return all((c["class"], c["color"]) in drawn for c in prompt.include if "color" in c)


Clauses = list[dict[str, Any]]


def _other(rng: np.random.Generator, options: tuple[str, ...], taken: set[str]) -> str:
    left = [name for name in options if name not in taken]
    return left[int(rng.integers(len(left)))]


def _replace_shape(rng: np.random.Generator, include: Clauses) -> None:
    clause = include[int(rng.integers(len(include)))]
    clause["class"] = _other(rng, SHAPES, {c["class"] for c in include})


def _recount(rng: np.random.Generator, include: Clauses) -> None:
    clause = include[0]
    clause["count"] = int(_other(rng, ("2", "3", "4"), {str(clause["count"])}))


def _recolor(rng: np.random.Generator, include: Clauses) -> None:
    clause = include[int(rng.integers(len(include)))]
    clause["color"] = _other(rng, tuple(COLORS), {c["color"] for c in include})


def _swap_colors(rng: np.random.Generator, include: Clauses) -> None:
    first, second = include
    first["color"], second["color"] = second["color"], first["color"]


def _turn(rng: np.random.Generator, include: Clauses) -> None:
    relation, anchor = include[1]["position"]
    include[1]["position"] = [_other(rng, RELATIONS, {relation}), anchor]
