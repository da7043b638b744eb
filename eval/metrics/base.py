"""What a metric declares of itself, once and in its own file; nothing here imports torch."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from PIL import Image

    from ...worlds.shapes import Prompt
    from ..measure.image_sets import FolderJob, Scored
    from ..measure.score_files import Given, OnLine
    from ..run.job import Job
    from ..suite import Suite

Verdicts = list[tuple[float, str]]  # a score and, where there is one, the reason


class PictureScorer(Protocol):
    """Scores pictures by their prompts."""

    def __call__(self, prompts: Sequence[Prompt], images: Sequence[Image.Image]) -> Verdicts:
        """A score for every picture."""


@dataclass(frozen=True, kw_only=True)
class Metric(ABC):
    """A metric; its class says of what.

    Attributes:
        name: as suites, `--metrics` and reports call it.
        summary: what it says, in a few words.
        needs: of the user's data, options of `mmspec eval run`.
        weights: what the paths of the published networks that it needs lead to, by the name that
            `--weights` calls them; embedded ones are not among them.
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
    weights: Mapping[str, str] = field(default_factory=dict)
    larger_is_better: bool = True
    bounds: tuple[float, float] = (-math.inf, math.inf)
    by_task: bool = False
    told_by_task: bool = False
    share: bool = False

    def weights_of(self, judge: str = "") -> Mapping[str, str]:
        """The `weights` that it needs with a suite's judge."""
        return self.weights


@dataclass(frozen=True, kw_only=True)
class PictureMetric(Metric):
    """Scores single pictures by their prompts."""

    sources = ("images",)

    @abstractmethod
    def picture_scorer(self, job: Job) -> PictureScorer:
        """What scores the pictures of a run.

        Raises:
            InputError: weights are missing or don't fit.
        """


@dataclass(frozen=True, kw_only=True)
class BenchmarkMetric(PictureMetric):
    """A benchmark with a layout of its own for folders of pictures; scored alone."""

    scorer = "mmspec.eval.measure.score_files:score_benchmark"

    @abstractmethod
    def score_folder(self, suite: Suite, given: Given, on_line: OnLine) -> dict[str, Any]:
        """`n` and `metrics` of the user's folder; see `score_given`."""


@dataclass(frozen=True, kw_only=True)
class FolderMetric(Metric):
    """Scores a folder of pictures; metrics of one `network` share a pass over it."""

    scorer = "mmspec.eval.measure.image_sets:score_images"
    sources = ("images",)

    network: str

    @abstractmethod
    def score(self, group: Sequence[Any], job: FolderJob) -> Scored:
        """The results of the metrics of a network, all of this class."""

    def check(self, job: FolderJob) -> None:
        """Raise an `InputError` if pictures, reference and captions don't fit each other."""


@dataclass(frozen=True, kw_only=True)
class VideoMetric(Metric):
    """Scores videos by their frames."""

    scorer = "mmspec.eval.measure.videos:score_videos"
    sources = ("videos",)

    needs: tuple[str, ...] = ("videos", "prompts")

    @abstractmethod
    def video_scorer(self, given: Given) -> VideoScorer:
        """What scores the user's videos."""


class VideoScorer(Protocol):
    """Scores videos, each by its frames and what its line of metadata says."""

    def __call__(
        self, metadata: Mapping[str, Any], frames: Sequence[Image.Image]
    ) -> Mapping[str, float | str]:
        """Figures by name, and maybe a `reason`; empty: it says nothing of this video.

        Raises:
            ValueError: the frames can't be scored.
        """
