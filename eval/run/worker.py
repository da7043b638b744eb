"""Does the units of a job: in this process, or as one of many."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from ...pipelines.notices import timed_apart
from ..modalities.base import modality
from ..modalities.bench import Bench
from .job import Job, Outcome, Unit


class Worker:
    """Holds a pipeline and whatever judges its outputs; both are made when first needed.

    Args:
        pipe: the job's pipeline, if there is one already.
    """

    def __init__(self, job: Job, pipe: Any = None) -> None:
        self.job = job
        torch.set_num_threads(job.threads)
        if pipe is not None:
            self.pipe = pipe

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole."""
        with timed_apart():
            return self.bench.run(unit)

    @cached_property
    def bench(self) -> Bench:
        """Who does the units."""
        return modality(self.job.suite.pipeline).bench(self.job, self.pipe)

    @cached_property
    def pipe(self) -> Any:
        """The job's pipeline on its device, or spread over several."""
        job = self.job
        return modality(job.suite.pipeline).open(job.model, job.device, job.device_map)
