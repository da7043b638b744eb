"""DPG-Bench: questions about a dense prompt, where a question counts only if its parents hold.

Hu et al. 2024, "ELLA: Equip Diffusion Models with LLM for Enhanced Semantic Alignment", with the
rules of the official `compute_dpg_bench.py`. The official answers come from mPLUG-large; with any
other judge the metric is another one, so reports call it `dpg_<judge>`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .base import BenchmarkMetric, PictureScorer, Verdicts

if TYPE_CHECKING:
    from PIL import Image

    from ...worlds.shapes import Prompt
    from ..judges.vqa import BlipAnswerer
    from ..measure.score_files import Given, OnLine
    from ..run.job import Job
    from ..suite import Suite


@dataclass(frozen=True)
class DpgQuestion:
    """A yes-or-no question.

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
    """A prompt and its questions; a picture of it is called by `item_id`."""

    item_id: str
    text: str
    questions: tuple[DpgQuestion, ...]


def holding(questions: Sequence[DpgQuestion], answers: Mapping[int, bool]) -> dict[int, bool]:
    """True, by id, for a question that holds: yes to it, and to all that it depends on."""
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


def _picture_scorer(job: Job) -> PictureScorer:
    from ..data.dpg_files import read_dpg

    asked = {p.text: p.questions for p in read_dpg(job.file("prompts", "DPG-Bench's csv"))}
    judge = _judge(job)

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        out: Verdicts = []
        for prompt, image in zip(prompts, images, strict=True):
            questions = asked[prompt.prompt]
            said = judge.answer([image] * len(questions), [q.text for q in questions])
            answers = {q.id: yes for q, yes in zip(questions, said, strict=True)}
            out.append((100 * picture_score(questions, answers), ""))
        return out

    return score


def _score_folder(suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
    from ..data.dpg_files import judge_folder, read_dpg, read_folder

    pictures = read_folder(given.path("images"), read_dpg(given.path("prompts")))
    judged = judge_folder(_judge(given), pictures, on_line=on_line, background=given.background)
    metrics = {
        name: {"value": scores["overall"], "parts": {**scores["l1"], **scores["l2"]}}
        for name, scores in judged.items()
    }
    return {"n": len(pictures), "metrics": metrics}


def _judge(given: Given | Job) -> BlipAnswerer:
    from ..judges.vqa import BlipAnswerer

    ((name, what),) = DPG.weights.items()
    return BlipAnswerer(given.file(name, what), device=given.device)


DPG = BenchmarkMetric(
    name="dpg",
    summary="percentage of a dense prompt's questions that hold in the picture",
    needs=("images", "prompts"),
    weights={
        "blip_vqa": "the folder of Salesforce/blip-vqa-base, or another BLIP for visual questions"
    },
    bounds=(0, 100),
    picture_scorer=_picture_scorer,
    score_folder=_score_folder,
)
