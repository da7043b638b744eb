"""Scores of what the user has already: pictures, answers, videos. The run draws nothing."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from ...errors import InputError
from ...files import locked, to_json, write_atomic, write_json
from ...picture import BACKGROUND, check_background
from ...registry import resolve
from ..environment import environment
from ..metrics.base import BenchmarkMetric, Metric
from ..metrics.registry import check_weights
from ..run.samples import Line
from ..suite import Suite
from .bootstrap import FEWEST_CLUSTERS, StratifiedMean


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

    def file(self, name: str, what: str) -> Path:
        """The weights of a network that the suite can't do without."""
        if name not in self.weights:
            raise InputError(f"this suite needs --weights {name}=PATH: {what}")
        return self.weights[name]


M = TypeVar("M", bound=Metric)
OnLine = Callable[[Line], None]
Progress = Callable[[int, int], None]  # told how many are done, and of how many


def score_given(
    suite: Suite,
    given: Given,
    out: Path,
    command: Sequence[str] = (),
    progress: Progress | None = None,
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
    scorer = _scorer(suite)
    _check_read(suite, given)
    if (out / "run.json").exists():
        raise InputError(f"{out} holds a run of a pipeline; choose another folder")
    with locked(out):
        lines: list[Line] = []
        scores = scorer(suite, given, lines.append, progress)
        record = {
            "suite": suite.name,
            "command": shlex.join(command),
            "environment": environment(torch.device(given.device)),
            **scores,
        }
        write_atomic(out / "samples.jsonl", "".join(to_json(line) + "\n" for line in lines))
        write_json(out / "scores.json", record)
    return record


def score_benchmark(
    suite: Suite, given: Given, on_line: OnLine, progress: Progress | None
) -> dict[str, Any]:
    """A benchmark of pictures in its own layout; see `score_given`."""
    advice = "{} has a layout of its own: choose it alone with --metrics"
    metric = only_metric(suite, BenchmarkMetric, advice)
    return metric.score_folder(suite, given, on_line)


def only_metric(suite: Suite, kind: type[M], advice: str) -> M:
    """A suite's one metric, of a class; where it has others, an `InputError` with advice."""
    first, *others = suite.declared
    if others or not isinstance(first, kind):
        raise InputError(advice.format(first.name))
    return first


def mean_with_interval(
    values: Sequence[float], value: float | None = None, span: float = 1.0
) -> dict[str, Any]:
    """The mean, or the figure that stands for it, with its bootstrap interval if there are enough.

    Args:
        span: from the least value that there may be to the largest.
    """
    array, means = np.array(values, dtype=np.float64), StratifiedMean([""] * len(values))
    out: dict[str, Any] = {"value": float(array.mean()) if value is None else value}
    if means.fewest >= FEWEST_CLUSTERS:
        out["ci95"] = means.interval(array, span)
    return out


def _check_read(suite: Suite, given: Given) -> None:
    """Raise an `InputError` if a file or choice is given that no metric of the suite reads."""
    read = {"weights", "device"}.union(*(metric.needs + metric.takes for metric in suite.declared))
    for option in fields(Given):
        if option.name not in read and getattr(given, option.name) != option.default:
            named = " and ".join(metric.name for metric in suite.declared)
            raise InputError(f"--{option.name} is nothing that {named} reads; leave it out")


def _scorer(suite: Suite) -> Any:
    """The function that scores files by a suite's metrics."""
    of = {metric.scorer: metric.name for metric in suite.declared}
    if not of:
        raise InputError(
            f"suite {suite.name} has no metric that scores files; name one with --metrics"
        )
    if "" in of:
        raise InputError(f"{of['']} is of what a pipeline makes: it scores no files")
    if len(of) > 1:
        raise InputError(f"{' and '.join(of.values())} score other files: choose with --metrics")
    (scorer,) = of
    return resolve(scorer)
