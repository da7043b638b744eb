"""GenEval: the share of pictures that show what their prompts say, as a judge finds.

Ghosh et al. 2023, "GenEval: An Object-Focused Framework for Evaluating Text-to-Image Alignment".
The rules are in `worlds.shapes.scoring`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import InputError
from ...worlds.shapes.vocabulary import TASKS
from ..judges.base import JUDGES
from .base import BenchmarkMetric, PictureScorer, Verdicts

if TYPE_CHECKING:
    from PIL import Image

    from ...worlds.shapes import Prompt
    from ..measure.score_files import Given, OnLine
    from ..run.job import Job
    from ..suite import Suite


def geneval_scores(results: Iterable[tuple[str, bool]]) -> dict[str, float]:
    """Mean of each task from `(tag, correct)` pairs, and `overall`, the mean of the six means.

    A task without results is left out, and then so is `overall`: the mean of fewer tasks is
    another number.
    """
    by_task: dict[str, list[bool]] = {}
    for tag, correct in results:
        if tag not in TASKS:
            raise InputError(f"unknown task {tag!r}; GenEval has {', '.join(TASKS)}")
        by_task.setdefault(tag, []).append(bool(correct))
    scores: dict[str, float] = {
        task: float(np.mean(by_task[task])) for task in TASKS if task in by_task
    }
    if len(scores) == len(TASKS):
        scores["overall"] = float(np.mean(list(scores.values())))
    return scores


def _picture_scorer(job: Job) -> PictureScorer:
    """Right or wrong, as the suite's judge says."""
    judge = JUDGES.get(job.suite.judge).load(job.file, job.device)

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        answers = judge.judge([p.metadata() for p in prompts], images)
        return [(float(right), reason) for right, reason in answers]

    return score


def _score_folder(suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
    from ..data.geneval_files import judge_folder, read_folder, read_metadata

    part = JUDGES.get(suite.judge)
    prompts = read_metadata(given.path("prompts"), part.classes)
    folders = read_folder(given.path("images"), prompts)
    judge = part.load(given.file, given.device)
    scores = judge_folder(judge, folders, on_line, given.background)
    value = scores.pop("overall", float("nan"))
    tasks = {"value": value, "parts": scores, "judge": judge.name}
    return {"n": sum(len(f.pictures) for f in folders), "metrics": {"geneval": tasks}}


GENEVAL = BenchmarkMetric(
    name="geneval",
    summary="share of pictures with the objects, counts, colours and places that prompts ask for",
    needs=("images", "prompts"),
    bounds=(0, 1),
    by_task=True,
    told_by_task=True,
    share=True,
    judged=True,
    picture_scorer=_picture_scorer,
    score_folder=_score_folder,
)
