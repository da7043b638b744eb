"""Captions in GenEval's six task forms, with the metadata that GenEval's scorer reads."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from .vocabulary import (
    COLORS,
    NUMBERS,
    PLURALS,
    RELATIONS,
    SHAPES,
    TASKS,
    Split,
    Task,
    held_out_color,
    held_out_count,
    held_out_pair,
    held_out_relation,
)


@dataclass(frozen=True)
class Prompt:
    """One caption and what must be in the picture.

    `include` and `exclude` follow GenEval's `evaluation_metadata.jsonl`: a list of
    `{"class", "count", "color"?, "position"?: [relation, index of the anchor object]}`.
    """

    prompt: str
    tag: Task
    include: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)

    def metadata(self) -> dict[str, Any]:
        """The line of `evaluation_metadata.jsonl` for this prompt."""
        return asdict(self)


def sample_prompt(rng: np.random.Generator, task: Task, split: Split = "train") -> Prompt:
    """One prompt of `task`; held-out prompts name at least one combination unseen in training.

    `single_object` has no combination to hold out (eight prompts in all), so both splits share it.
    """
    while True:
        prompt, unseen = _draw(rng, task)
        if task == "single_object" or unseen == (split == "held_out"):
            return prompt


def held_out_prompts(per_task: int, seed: int = 0) -> list[Prompt]:
    """`6 * per_task` held-out prompts, interleaved by task, the same for the same seed."""
    rng = np.random.default_rng([seed, 20_000])
    return [sample_prompt(rng, task, "held_out") for _ in range(per_task) for task in TASKS]


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def _draw(rng: np.random.Generator, task: Task) -> tuple[Prompt, bool]:
    """A prompt drawn freely, and whether it names a held-out combination."""
    colors = tuple(COLORS)
    a, b = (SHAPES[int(i)] for i in rng.permutation(len(SHAPES))[:2])
    if task == "single_object":
        return Prompt(f"a photo of a {a}", task, [{"class": a, "count": 1}]), False
    if task == "colors":
        color = _pick(rng, colors)
        include = [{"class": a, "count": 1, "color": color}]
        return Prompt(f"a photo of {_article(color)} {a}", task, include), held_out_color(a, color)
    if task == "counting":
        count = int(rng.integers(2, 5))
        prompt = Prompt(
            f"a photo of {NUMBERS[count]} {PLURALS[a]}",
            task,
            [{"class": a, "count": count}],
            [{"class": a, "count": count + 1}],
        )
        return prompt, held_out_count(a, count)
    if task == "two_object":
        include = [{"class": a, "count": 1}, {"class": b, "count": 1}]
        return Prompt(f"a photo of a {a} and a {b}", task, include), held_out_pair(a, b)

    ca, cb = (colors[int(i)] for i in rng.permutation(len(colors))[:2])
    unseen_colors = held_out_color(a, ca) or held_out_color(b, cb)
    if task == "color_attr":
        include = [
            {"class": a, "count": 1, "color": ca},
            {"class": b, "count": 1, "color": cb},
        ]
        text = f"a photo of {_article(ca)} {a} and {_article(cb)} {b}"
        return Prompt(text, task, include), unseen_colors or held_out_pair(a, b)

    relation = _pick(rng, RELATIONS)
    include = [
        {"class": b, "count": 1},
        {"class": a, "count": 1, "position": [relation, 0]},
    ]
    unseen = held_out_relation(a, relation, b) or held_out_pair(a, b)
    if rng.random() < 0.5:  # GenEval's position prompts name no colours; half of ours do
        include[0]["color"], include[1]["color"] = cb, ca
        text = f"a photo of {_article(ca)} {a} {relation} {_article(cb)} {b}"
        return Prompt(text, task, include), unseen or unseen_colors
    return Prompt(f"a photo of a {a} {relation} a {b}", task, include), unseen


def _article(color: str) -> str:
    return ("an " if color[0] in "aeiou" else "a ") + color
