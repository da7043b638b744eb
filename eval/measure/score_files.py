"""Scores of what the user has already: pictures, answers, videos. The run draws nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ...files import locked, read_json, to_json, write_atomic, write_json
from ...picture import BACKGROUND, check_background
from ...registry import check_name
from ...worlds.shapes.vocabulary import SHAPES
from ..environment import environment
from ..judges.base import Judge
from ..run.samples import Line
from ..suite import Suite
from . import bootstrap


@dataclass(frozen=True)
class Given:
    """The user's files; which of them a suite needs, it says itself.

    Attributes:
        weights: files and folders of networks, by name.
        partial: unanswered questions may be left out.
        background: of pictures that are transparent.
    """

    images: Path | None = None
    reference: Path | None = None
    captions: Path | None = None
    prompts: Path | None = None
    questions: Path | None = None
    annotations: Path | None = None
    predictions: Path | None = None
    videos: Path | None = None
    weights: Mapping[str, Path] = field(default_factory=dict)
    partial: bool = False
    device: str = "cpu"
    background: str = BACKGROUND

    def path(self, option: str) -> Path:
        """A file that the suite can't do without."""
        value: Path | None = getattr(self, option)
        if value is None:
            raise InputError(f"this suite needs --{option} PATH")
        return value

    def weight(self, name: str, what: str) -> Path:
        """A network that the suite can't do without."""
        if name not in self.weights:
            raise InputError(f"this suite needs --weights {name}=PATH: {what}")
        return self.weights[name]


OnLine = Callable[[Line], None]


def score_given(
    suite: Suite,
    given: Given,
    out: Path,
    command: Sequence[str] = (),
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Score the user's files and write `scores.json` and `samples.jsonl`.

    Returns:
        What `scores.json` holds: `suite`, `n`, `metrics` by name with `value`, where it is a mean
        `ci95`, and `notes`.

    Raises:
        InputError: a file is missing or malformed, or the figure would mislead.
    """
    check_weights(given.weights)
    check_background(given.background)
    if (out / "run.json").exists():
        raise InputError(f"{out} holds a run of a pipeline; choose another folder")
    with locked(out):
        lines: list[Line] = []
        if suite.source == "answers":
            scores = _answers(suite, given, lines.append)
        elif suite.source == "videos":
            scores = _videos(suite, given, lines.append)
        elif suite.metrics == ("geneval",):
            scores = _geneval(suite, given, lines.append)
        elif suite.metrics == ("dpg",):
            scores = _dpg(given, lines.append)
        else:
            scores = _images(suite, given, lines.append, progress)
        record = {
            "suite": suite.name,
            "command": shlex.join(command),
            "environment": environment(),
            **scores,
        }
        write_atomic(out / "samples.jsonl", "".join(to_json(line) + "\n" for line in lines))
        write_json(out / "scores.json", record)
    return record


def _images(
    suite: Suite, given: Given, on_line: OnLine, progress: Callable[[int, int], None] | None
) -> dict[str, Any]:
    """Rewards of pictures and distances of sets."""
    from ..data.captions import read_captions
    from ..data.folders import read_images
    from .image_sets import score_folders

    return score_folders(
        read_images(given.path("images"), given.background),
        reference=read_images(given.reference, given.background) if given.reference else None,
        captions=read_captions(given.captions) if given.captions else None,
        metrics=suite.metrics,
        weights=given.weights,
        device=given.device,
        progress=progress,
        on_line=on_line,
    )


def _geneval(suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
    """GenEval of pictures in its own layout."""
    from ..data.geneval_files import judge_folder, read_folder, read_metadata
    from ..judges.coco import CLASSES
    from ..judges.geneval import GenEvalJudge
    from ..judges.shapes import ShapesJudge

    world = suite.judge == "shapes"
    prompts = read_metadata(given.path("prompts"), SHAPES if world else CLASSES)
    folders = read_folder(given.path("images"), prompts)
    judge: Judge = ShapesJudge()
    if not world:
        judge = GenEvalJudge.from_pretrained(
            given.weight("mask2former", MASK2FORMER),
            given.weight("clip", CLIP),
            device=given.device,
        )
    scores = judge_folder(judge, folders, on_line, given.background)
    tasks = {"value": scores.pop("overall", float("nan")), "parts": scores, "judge": judge.name}
    return {"n": sum(len(f.pictures) for f in folders), "metrics": {"geneval": tasks}}


def _dpg(given: Given, on_line: OnLine) -> dict[str, Any]:
    """DPG-Bench of pictures in its own layout."""
    from ..data.dpg_files import judge_folder, read_dpg, read_folder
    from ..judges.vqa import BlipAnswerer

    pictures = read_folder(given.path("images"), read_dpg(given.path("prompts")))
    judge = BlipAnswerer(given.weight("blip_vqa", BLIP), device=given.device)
    metrics = {}
    judged = judge_folder(judge, pictures, on_line=on_line, background=given.background)
    for name, scores in judged.items():
        metrics[name] = {"value": scores["overall"], "parts": {**scores["l1"], **scores["l2"]}}
    return {"n": len(pictures), "metrics": metrics}


def _answers(suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
    """Accuracy of answers to questions."""
    from ..data import answers
    from .vqa import score_answers

    benchmark, questions = suite.metrics[0], given.path("questions")
    if benchmark == "vqav2" and (given.annotations or _is_vqav2(questions)):
        asked = answers.read_vqav2(questions, given.path("annotations"))
    else:
        readers = {
            "textvqa": answers.read_textvqa,
            "docvqa": answers.read_docvqa,
            "chartqa": answers.read_chartqa,
            "mmmu": answers.read_mmmu,
        }
        own = questions.suffix == ".jsonl" or (
            questions.suffix == ".parquet" and benchmark != "mmmu"
        )
        reader = answers.read_questions if own else readers.get(benchmark, answers.read_questions)
        asked = reader(questions)
    predictions = answers.read_predictions(given.path("predictions"))
    found = score_answers(asked, predictions, benchmark, given.partial)
    for name, score in zip(found["question_ids"], found["scores"], strict=True):
        on_line({"metric": benchmark, "id": name, "value": score})
    figures = dict(found["quality"])
    value = figures.pop(next(iter(figures)))  # the mean comes first, then those of the subjects
    parts = {name.rpartition("/")[2]: figure for name, figure in figures.items()}
    missing = found["missing"]
    notes = [f"{missing} questions have no prediction and are left out"] if missing else []
    return {
        "n": found["n"],
        "missing": missing,
        "metrics": {benchmark: {**_mean(found["scores"], value), "parts": parts, "notes": notes}},
    }


def _is_vqav2(path: Path) -> bool:
    """Whether a file has the form of the benchmark's own questions."""
    try:
        data = read_json(path) if path.suffix == ".json" else None
    except InputError:  # the reader will say so
        return False
    return isinstance(data, dict) and "data_subtype" in data


def _videos(suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
    """Per-frame rewards, motion and flicker of videos."""
    from ...rewards.registry import REWARDS, load_reward
    from ..data.videos import read_videos
    from ..metrics.frame_reward import frame_reward
    from ..metrics.motion import MotionJudge
    from ..metrics.temporal_flicker import temporal_flicker

    videos = read_videos(given.path("videos"), given.path("prompts"), given.background)
    named = [name for name in given.weights if name in REWARDS.names()]
    rewards = {name: load_reward(name, given.weights[name], given.device) for name in named}
    if "frame_reward" in suite.metrics and not rewards:
        rewards["shapes_clip_score"] = load_reward("shapes_clip_score", None, given.device)
    values: dict[str, list[float]] = {}
    for video in videos:
        frames = video.frames()
        line: Line = {"id": video.name, "frames": len(frames)}
        try:
            if "temporal_flicker" in suite.metrics:
                line["temporal_flicker"] = temporal_flicker(frames)
            for name, reward in rewards.items():
                scored = frame_reward(reward, video.metadata["prompt"], frames)
                line[f"{name}_mean"], line[f"{name}_worst_frame"] = scored.mean, scored.worst
        except ValueError as error:
            raise InputError(f"{video.path}: {error}") from error
        if "motion" in suite.metrics and _moves(video.metadata):
            right, line["reason"] = MotionJudge().judge(video.metadata, frames)
            line["motion"] = float(right)
        on_line(line)
        for name, value in line.items():
            if name not in ("id", "frames", "reason"):
                values.setdefault(name, []).append(value)
    metrics = {name: {**_mean(many), "n": len(many)} for name, many in values.items()}
    return {"n": len(videos), "metrics": metrics}


def _moves(metadata: dict[str, Any]) -> bool:
    return any("motion" in clause for clause in metadata.get("include", []))


def _mean(values: Sequence[float], value: float | None = None) -> dict[str, Any]:
    """The mean, or the figure that stands for it, with its bootstrap interval."""
    array = np.array(values, dtype=np.float64)
    out: dict[str, Any] = {"value": float(array.mean()) if value is None else value}
    if len(array) > 1:
        out["ci95"] = bootstrap.interval(lambda i: np.asarray(array[i].mean(1)), len(array))
    return out


def check_weights(names: Iterable[str]) -> None:
    """Raise an `InputError` if a name stands for no network that any suite knows."""
    from ...rewards.registry import FEATURES, REWARDS

    known = [*REWARDS.names(), *FEATURES.names(), "lpips", "mask2former", "clip", "blip_vqa"]
    for name in names:
        check_name("network of --weights", name, list(dict.fromkeys(known)))


MASK2FORMER = "the folder of facebook/mask2former-swin-small-coco-instance"
CLIP = "a file of CLIP ViT-L/14 weights for open_clip"
BLIP = "the folder of Salesforce/blip-vqa-base, or another BLIP for visual questions"
