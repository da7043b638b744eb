"""Captions in GenEval's six task forms, with the metadata that GenEval's scorer reads."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

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

_DRAWS = 20  # of a held-out prompt, before one is told again
TOLD = 3  # kinds of things that a caption names with their colours


@dataclass(frozen=True)
class Prompt:
    """Caption, and what must be in the picture.

    `include` and `exclude` follow GenEval's `evaluation_metadata.jsonl`: a list of
    `{"class", "count", "color"?, "position"?: [relation, index of the anchor object]}`. A caption
    of no task has no tag.
    """

    prompt: str
    tag: Task | Literal[""] = ""
    include: list[dict[str, Any]] = field(default_factory=list)
    exclude: list[dict[str, Any]] = field(default_factory=list)

    def metadata(self) -> dict[str, Any]:
        """The line of `evaluation_metadata.jsonl` for this prompt."""
        return asdict(self)


def sample_prompt(rng: np.random.Generator, task: Task, split: Split = "train") -> Prompt:
    """Sample a prompt of `task`; held-out prompts name at least one combination unseen in training.

    `single_object` has no combination to hold out (eight prompts in all), so both splits share it.
    """
    while True:
        include, exclude = _draw_clauses(rng, task)
        if task == "single_object" or names_unseen(include) == (split == "held_out"):
            return Prompt(caption(task, include), task, include, exclude)


def prompt_list(
    per_task: int,
    seed: int = 0,
    besides: Sequence[Prompt] = (),
    split: Split = "held_out",
) -> list[Prompt]:
    """`6 * per_task` prompts, interleaved by task, the same for the same seed.

    A hundred of each task are `assets/prompts/shapes-held-out.jsonl`; sixty of seed 7 besides
    those are `shapes-tuning.jsonl`, by which settings and weights are chosen. Sixty of those that
    models are trained on are `shapes-seen.jsonl`.

    Args:
        besides: prompts that none of them is in the tasks that have more. Two objects, colours,
            counts and single objects have a few held-out prompts each.
    """
    rng, taken = np.random.default_rng([seed, 20_000]), {prompt.prompt for prompt in besides}
    prompts = []
    for task in TASKS * per_task:
        for _ in range(_DRAWS):
            prompt = sample_prompt(rng, task, split)
            if prompt.prompt not in taken:
                break
        prompts.append(prompt)
    return prompts


def caption(task: Task, include: list[dict[str, Any]]) -> str:
    """The words of a prompt, in GenEval's form of the task."""
    first = include[0]
    if task == "counting":
        return f"a photo of {NUMBERS[first['count']]} {PLURALS[first['class']]}"
    names = [named(clause) for clause in include]
    if task == "position":  # the anchor stands first in the metadata and last in the caption
        return f"a photo of {names[1]} {include[1]['position'][0]} {names[0]}"
    return f"a photo of {' and '.join(names)}"


def mixed_caption(rng: np.random.Generator, things: Sequence[tuple[str, str]]) -> str:
    """A caption of one to four things, pairs of shape and colour, in any order and equal ones once.

    Colours are named in most captions, and left out where the caption would grow too long for the
    models' prefix (`TOLD` kinds of things).
    """
    colored = len(set(things)) <= TOLD and rng.random() < 0.7
    kinds = Counter((shape, color if colored else "") for shape, color in things)
    parts = []
    for number in rng.permutation(len(kinds)):
        (shape, color), count = list(kinds.items())[number]
        if count == 1:
            parts.append(named({"class": shape, **({"color": color} if color else {})}))
        else:
            parts.append(" ".join(filter(None, [NUMBERS[count], color, PLURALS[shape]])))
    return f"a photo of {' and '.join(parts)}"


def named(clause: dict[str, Any]) -> str:
    """A clause's object with its article, and its colour if it has one."""
    words = f"{clause['color']} {clause['class']}" if "color" in clause else clause["class"]
    return ("an " if words[0] in "aeiou" else "a ") + words


def names_unseen(include: list[dict[str, Any]]) -> bool:
    """Test whether a prompt names a combination that training never shows."""
    for clause in include:
        if "color" in clause and held_out_color(clause["class"], clause["color"]):
            return True
        if held_out_count(clause["class"], clause["count"]):
            return True
        relation, anchor = clause.get("position", (None, 0))
        if relation and held_out_relation(clause["class"], relation, include[anchor]["class"]):
            return True
    classes = [clause["class"] for clause in include]
    return any(held_out_pair(a, b) for a, b in itertools.combinations(classes, 2))


def _pick(rng: np.random.Generator, options: tuple[str, ...]) -> str:
    return options[int(rng.integers(len(options)))]


def _draw_clauses(
    rng: np.random.Generator, task: Task
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Draw what must be in the picture, and what must not."""
    colors = tuple(COLORS)
    a, b = (SHAPES[int(i)] for i in rng.permutation(len(SHAPES))[:2])
    if task == "single_object":
        return [{"class": a, "count": 1}], []
    if task == "colors":
        return [{"class": a, "count": 1, "color": _pick(rng, colors)}], []
    if task == "counting":
        count = int(rng.integers(2, 5))
        return [{"class": a, "count": count}], [{"class": a, "count": count + 1}]
    if task == "two_object":
        return [{"class": a, "count": 1}, {"class": b, "count": 1}], []

    ca, cb = (colors[int(i)] for i in rng.permutation(len(colors))[:2])
    if task == "color_attr":
        return [{"class": a, "count": 1, "color": ca}, {"class": b, "count": 1, "color": cb}], []

    relation = _pick(rng, RELATIONS)
    include = [{"class": b, "count": 1}, {"class": a, "count": 1, "position": [relation, 0]}]
    if rng.random() < 0.5:  # GenEval's position prompts name no colours; half of ours do
        include[0]["color"], include[1]["color"] = cb, ca
    return include, []
