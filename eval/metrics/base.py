"""Declarations of metrics, each in its own file; nothing here imports torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from ..judges.base import JUDGES

if TYPE_CHECKING:
    from PIL import Image

    from ...worlds.shapes import Prompt
    from ..measure.image_sets import FolderJob, Scored
    from ..measure.score_files import Given, OnLine
    from ..run.job import Job
    from ..suite import Suite

Verdicts = list[tuple[float, str]]  # a score and, where there is one, the reason
PictureScorer: TypeAlias = "Callable[[Sequence[Prompt], Sequence[Image.Image]], Verdicts]"
Figures = dict[str, float | str]
VideoScorer: TypeAlias = "Callable[[Mapping[str, Any], Sequence[Image.Image]], Figures]"
"""Figures by name, and maybe a `reason`, of a video's metadata and frames; empty: it says nothing.

Of frames that can't be scored it raises a `ValueError`.
"""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric; its class says of what.

    Attributes:
        name: as suites, `--metrics` and reports call it.
        summary: what it says, in a few words.
        needs: of the user's data, options of `mmspec eval run`.
        takes: those that it reads besides, where they are given.
        weights: what the paths of the published networks that it needs lead to, by the name that
            `--weights` calls them; embedded ones are not among them.
        judged: the suite's judge scores, and its networks are needed.
        larger_is_better: which way is up.
        bounds: from where to where values lie.
        by_task: the mean of the means by task, not over all samples.
        told_by_task: reports tell its tasks apart.
        share: reports tell what share of plain's value is left.
        scorer: `"module:function"` that scores the user's files by metrics of this class; "": only
            a run has this metric.
        sources: what suites those files are for.
        single: every output has a value of its own.
    """

    scorer: ClassVar[str] = ""
    sources: ClassVar[tuple[str, ...]] = ()
    single: ClassVar[bool] = True

    name: str
    summary: str
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    weights: Mapping[str, str] = field(default_factory=dict)
    judged: bool = False
    larger_is_better: bool = True
    bounds: tuple[float, float] = (-math.inf, math.inf)
    by_task: bool = False
    told_by_task: bool = False
    share: bool = False

    @property
    def span(self) -> float:
        """From its least value to the largest; 1 where nothing bounds it."""
        low, high = self.bounds
        return high - low if math.isfinite(high - low) else 1.0

    def weights_of(self, judge: str = "") -> Mapping[str, str]:
        """The `weights` that it needs with a suite's judge."""
        return JUDGES.get(judge).weights if self.judged else self.weights


@dataclass(frozen=True, kw_only=True)
class RunMetric(Metric):
    """Says from 0 to 1 how true the outputs of a run are to what was asked for."""

    bounds: tuple[float, float] = (0, 1)


@dataclass(frozen=True, kw_only=True)
class PictureMetric(Metric):
    """Scores single pictures by their prompts.

    Attributes:
        picture_scorer: makes what scores the pictures of a run; it raises an `InputError` if
            weights are missing or don't fit.
    """

    sources = ("images",)

    takes: tuple[str, ...] = ("background",)
    picture_scorer: Callable[[Job], PictureScorer]


@dataclass(frozen=True, kw_only=True)
class BenchmarkMetric(PictureMetric):
    """A benchmark with a layout of its own for folders of pictures; scored alone.

    Attributes:
        score_folder: gives `n` and `metrics` of the user's folder; see `score_given`.
    """

    scorer = "mmspec.eval.measure.score_files:score_benchmark"

    score_folder: Callable[[Suite, Given, OnLine], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class FolderMetric(Metric, ABC):
    """Scores a folder of pictures; metrics of one `network` share a pass over it."""

    scorer = "mmspec.eval.measure.image_sets:score_images"
    sources = ("images",)

    takes: tuple[str, ...] = ("background",)
    network: str

    @abstractmethod
    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        """The results of the metrics of a network, all of this class."""

    def check(self, job: FolderJob) -> None:
        """Raise an `InputError` if pictures, reference and captions don't fit each other."""


@dataclass(frozen=True, kw_only=True)
class VideoMetric(Metric):
    """Scores videos by their frames.

    Attributes:
        video_scorer: makes what scores the user's videos.
    """

    scorer = "mmspec.eval.measure.videos:score_videos"
    sources = ("videos",)

    needs: tuple[str, ...] = ("videos", "prompts")
    takes: tuple[str, ...] = ("background",)
    video_scorer: Callable[[Given], VideoScorer]
