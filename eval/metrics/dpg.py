"""DPG-Bench: questions about a dense prompt, where a question counts only if its parents hold.

Hu et al. 2024, "ELLA: Equip Diffusion Models with LLM for Enhanced Semantic Alignment", with the
rules of the official `compute_dpg_bench.py`. The official answers come from mPLUG-large; with any
other judge the metric is another one, so reports call it `dpg_<judge>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class DpgQuestion:
    """One yes-or-no question.

    Attributes:
        id: its number within the prompt, from 1.
        text: what is asked.
        parents: the questions that must hold for this one to make sense.
        category: the second-level category, such as `attribute - color`.
    """

    id: int
    text: str
    parents: tuple[int, ...]
    category: str

    @property
    def broad_category(self) -> str:
        """The first-level category, such as `attribute`."""
        return self.category.split("-")[0].strip()


@dataclass(frozen=True)
class DpgPrompt:
    """One prompt and its questions; a picture of it is called by `item_id`."""

    item_id: str
    text: str
    questions: tuple[DpgQuestion, ...]


def holding(questions: Sequence[DpgQuestion], answers: Mapping[int, bool]) -> dict[int, bool]:
    """Which questions hold: answered yes, and so are all that they depend on, near or far."""
    parents = {question.id: question.parents for question in questions}
    known: dict[int, bool] = {}

    def holds(number: int) -> bool:
        if number not in known:
            known[number] = answers[number] and all(holds(parent) for parent in parents[number])
        return known[number]

    return {question.id: holds(question.id) for question in questions}


def picture_score(questions: Sequence[DpgQuestion], answers: Mapping[int, bool]) -> float:
    """The share of the questions that hold, 0 to 1; `answers` by the questions' ids."""
    return float(np.mean(list(holding(questions, answers).values())))


def dpg_scores(
    results: Iterable[tuple[DpgPrompt, Sequence[Mapping[int, bool]]]],
) -> dict[str, Any]:
    """The benchmark's figures, 0 to 100, from the answers for each picture of each prompt.

    Returns:
        `overall`, the mean over prompts of the mean over their pictures; `l1` and `l2`, the share
        of yes by first- and second-level category. As in the official script a category counts the
        answers as given, without regard to parents; it takes them from the last picture of a prompt
        alone, this function from all.
    """
    means: list[float] = []
    by_category: dict[str, dict[str, list[bool]]] = {"l1": {}, "l2": {}}
    for prompt, pictures in results:
        means.append(float(np.mean([picture_score(prompt.questions, a) for a in pictures])))
        for question in prompt.questions:
            said = [answers[question.id] for answers in pictures]
            by_category["l1"].setdefault(question.broad_category, []).extend(said)
            by_category["l2"].setdefault(question.category, []).extend(said)
    if not means:
        raise ValueError("no results: the mean of nothing is undefined")
    scores: dict[str, Any] = {"overall": 100 * float(np.mean(means))}
    for level, answers_of in by_category.items():
        scores[level] = {
            name: 100 * float(np.mean(answers_of[name])) for name in sorted(answers_of)
        }
    return scores
