"""What is said of a single picture: GenEval's judges and rewards under one roof."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from PIL import Image

from ...errors import InputError
from ...worlds.shapes import Prompt
from ..data.folders import read_images
from ..judges.base import Judge
from ..judges.shapes import ShapesJudge
from ..metrics.table import METRICS
from ..run.job import Job
from .score_files import BLIP, CLIP, MASK2FORMER, check_weights

Verdicts = list[tuple[float, str]]  # a score and, where there is one, the reason


class PictureScorer(Protocol):
    """Scores pictures by their prompts."""

    def __call__(self, prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        """A score for every picture."""


def make_scorers(job: Job) -> dict[str, PictureScorer]:
    """The suite's metrics of single pictures, by name.

    Raises:
        InputError: a metric needs weights that were not given.
    """
    alone = [n for n in job.suite.metrics if n not in METRICS or METRICS[n].kind == "reward"]
    return {name: _make(name, job) for name in alone}


def check_files(job: Job) -> None:
    """Raise an `InputError` if a metric lacks its weights or reference, before any work."""
    from ...rewards.registry import PUBLISHED

    needed: dict[str, str] = {}
    for metric in job.suite.metrics:
        if metric == "geneval" and job.suite.judge == "mask2former":
            needed |= {"mask2former": MASK2FORMER, "clip": CLIP}
        elif metric == "dpg":
            needed["blip_vqa"] = BLIP
        elif metric in METRICS and METRICS[metric].network in PUBLISHED:
            network = METRICS[metric].network
            needed[network] = PUBLISHED[network]
        of_sets = metric in METRICS and METRICS[metric].kind in ("frechet", "kid")
        if of_sets and job.suite.reference is None and "reference" not in job.files:
            raise InputError(f"{metric} compares with real pictures: --reference FOLDER")
    paths = {name: job.file(name, what) for name, what in needed.items()}
    for name, path in paths.items():
        if not path.exists():
            raise InputError(f"no {path} ({name} should be {needed[name]})")
    check_weights(set(job.files) - {"prompts", "reference"})
    if "reference" in job.files:
        read_images(job.files["reference"])


def _make(name: str, job: Job) -> PictureScorer:
    if name == "geneval":
        return _geneval(job)
    return _dpg(job) if name == "dpg" else _reward(name, job)


def _geneval(job: Job) -> PictureScorer:
    """Right or wrong, by the suite's judge."""
    judge: Judge
    if job.suite.judge == "shapes":
        judge = ShapesJudge()
    else:
        from ..judges.geneval import GenEvalJudge

        judge = GenEvalJudge.from_pretrained(
            job.file("mask2former", MASK2FORMER), job.file("clip", CLIP), device=job.device
        )

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        answers = judge.judge([p.metadata() for p in prompts], images)
        return [(float(right), reason) for right, reason in answers]

    return score


def _dpg(job: Job) -> PictureScorer:
    """The share of a prompt's questions that hold."""
    from ..data.dpg_files import read_dpg
    from ..judges.vqa import BlipAnswerer
    from ..metrics.dpg import picture_score

    asked = {p.text: p.questions for p in read_dpg(job.file("prompts", "DPG-Bench's csv"))}
    judge = BlipAnswerer(job.file("blip_vqa", BLIP), device=job.device)

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        out: Verdicts = []
        for prompt, image in zip(prompts, images, strict=True):
            questions = asked[prompt.prompt]
            said = judge.answer([image] * len(questions), [q.text for q in questions])
            answers = {q.id: yes for q, yes in zip(questions, said, strict=True)}
            out.append((100 * picture_score(questions, answers), ""))
        return out

    return score


def _reward(name: str, job: Job) -> PictureScorer:
    from ...rewards.registry import load_reward

    path = Path(job.files[name]) if name in job.files else None
    reward = load_reward(name, path, job.device)

    def score(prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        return [(s, "") for s in reward.score([p.prompt for p in prompts], list(images)).tolist()]

    return score
