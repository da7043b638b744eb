"""Base of modalities that draw pictures from prompts: timed, judged alone and as sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from PIL import Image

from ...errors import InputError
from ..data.folders import read_images
from ..files import png_bytes
from ..metrics.base import PictureMetric, PictureScorer
from ..metrics.registry import check_weights
from ..run.job import Job, Outcome, Plan, Unit
from ..run.run_folder import RunFolder
from ..run.samples import Line
from ..variants import MethodVariant, method_variant, unchanged
from .base import Rows
from .bench import Bench, Judged
from .image_sets import compare_sets
from .modality import Modality


class DrawingModality(Modality):
    """The part of `Modality` that does not depend on what a picture's tokens are."""

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        check_files(job)
        if pipe is not None:
            self.check_rows(job, pipe)

    def check_rows(self, job: Job, pipe: Any) -> None:
        """Raise an `InputError` if a pipeline can't draw a job's rows."""
        for name in job.rows:
            variant = method_variant(job, name, pipe)
            try:
                self.check_call(pipe, variant.config, {**job.call, **variant.own})
            except InputError as error:
                raise InputError(f"{name}: {error}") from error

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        return compare_sets(job, folder, rows) if folder.log.of("quality") else []


class DrawingBench(Bench):
    """Bench of pictures; judges are made when first needed."""

    def run(self, unit: Unit) -> Outcome:
        with unchanged(self.pipe):
            return super().run(unit)

    def make_variant(self, name: str) -> MethodVariant:
        return method_variant(self.job, name, self.pipe)

    def inputs(self, indices: range) -> list[str]:
        return [self.job.prompt(index).prompt for index in indices]

    def judged(self, items: Sequence[Any], out: Any) -> list[Judged]:
        started = time.perf_counter()
        found = self.scores(items, self.outputs(out))
        out.stats.seconds["reward"] = time.perf_counter() - started
        return found

    def shown(self, outcome: Outcome, name: str, row: int, inputs: Any, out: Any) -> Line:
        place = f"pictures/{name}/{outcome.unit.first + row:05d}.png"
        outcome.files[place] = png_bytes(self.picture(out, row))
        return {"picture": place}

    def resolution(self) -> str:
        side = self.job.call.get("height") or self.pipe.default_size
        return f"{side}×{side} px"

    def outputs(self, out: Any) -> Any:
        """Outputs of a call, in the order of its prompts."""
        return out.images

    def picture(self, out: Any, row: int) -> Image.Image:
        """Picture of an output that a reader sees."""
        return self.outputs(out)[row]

    def scores(self, items: Sequence[Any], outputs: Any) -> list[Judged]:
        """Scores by metric of every output, and what is wrong with it."""
        scored = {name: scorer(items, outputs) for name, scorer in self.scorers.items()}
        return [
            (
                {name: many[row][0] for name, many in scored.items()},
                "; ".join(many[row][1] for many in scored.values() if many[row][1]),
            )
            for row in range(len(items))
        ]

    @cached_property
    def scorers(self) -> dict[str, PictureScorer]:
        """The suite's metrics of single pictures, by name."""
        return make_scorers(self.job)


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
        if not any("reference" in metric.needs for metric in job.suite.declared):
            raise InputError(
                f"--reference is nothing that suite {job.suite.name} reads: no metric of it "
                "compares with real pictures; leave it out"
            )
        read_images(job.files["reference"])
