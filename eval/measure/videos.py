"""Scores of the user's videos, frame by frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ..data.videos import read_videos
from ..metrics.base import VideoMetric
from ..run.samples import Line
from .score_files import mean_with_interval

if TYPE_CHECKING:
    from ..suite import Suite
    from .score_files import Given, OnLine, Progress


def score_videos(
    suite: Suite, given: Given, on_line: OnLine, progress: Progress | None
) -> dict[str, Any]:
    """Score videos by each `VideoMetric` of a suite, see `score_given`."""
    videos = read_videos(given.path("videos"), given.path("prompts"), given.background)
    named = [metric for metric in suite.declared if isinstance(metric, VideoMetric)]
    scorers = [metric.video_scorer(given) for metric in named]
    values: dict[str, list[float]] = {}
    for video in videos:
        frames = video.frames()
        line: Line = {"id": video.name, "frames": len(frames)}
        for scorer in scorers:
            try:
                found = scorer(video.metadata, frames)
            except InputError:
                raise
            except ValueError as error:
                raise InputError(f"{video.path}: {error}") from error
            line |= found
            for name, value in found.items():
                if not isinstance(value, str):  # a reason
                    values.setdefault(name, []).append(value)
        on_line(line)
    metrics = {name: {**mean_with_interval(many), "n": len(many)} for name, many in values.items()}
    return {"n": len(videos), "metrics": metrics}
