"""Scorers of a run's single pictures, and the files that its metrics need."""

from __future__ import annotations

from ...errors import InputError
from ..data.folders import read_images
from ..metrics.base import PictureMetric, PictureScorer
from ..metrics.registry import check_weights
from ..run.job import Job


def make_scorers(job: Job) -> dict[str, PictureScorer]:
    """The suite's metrics of single pictures, by name.

    Raises:
        InputError: a metric needs weights that were not given.
    """
    alone = [metric for metric in job.suite.declared if isinstance(metric, PictureMetric)]
    return {metric.name: metric.picture_scorer(job) for metric in alone}


def check_files(job: Job) -> None:
    """Raise an `InputError` if a metric lacks its weights or reference, before any work."""
    needed: dict[str, str] = {}
    for metric in job.suite.declared:
        needed |= metric.weights_of(job.suite.judge)
        given = job.suite.reference is not None or "reference" in job.files
        if "reference" in metric.needs and not given:
            raise InputError(f"{metric.name} compares with real pictures: --reference FOLDER")
    paths = {name: job.file(name, what) for name, what in needed.items()}
    for name, path in paths.items():
        if not path.exists():
            raise InputError(f"no {path} ({name} should be {needed[name]})")
    check_weights(set(job.files) - {"prompts", "reference"})
    if "reference" in job.files:
        read_images(job.files["reference"])
