"""Does the units of a job: in this process, or as one of many."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from ...pipelines.image import ImagePipeline
from ...pipelines.token_image import TokenImagePipeline
from ..environment import environment
from ..quality import QualityWorker, target_entropy
from ..speed import SpeedWorker
from ..variation import tv_per_step
from .job import Job, Outcome, Unit


class Worker:
    """Holds a pipeline and whatever judges its pictures; both are made when first needed.

    Args:
        pipe: the job's pipeline, if there is one already.
    """

    def __init__(self, job: Job, pipe: TokenImagePipeline | None = None) -> None:
        self.job = job
        torch.set_num_threads(job.threads)
        if pipe is not None:
            self.pipe = pipe

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole."""
        if unit.kind == "speed":
            return self._speed.run(unit)
        if unit.kind == "quality":
            return self._quality.run(unit)
        if unit.kind == "target":
            entropy = target_entropy(self.pipe, self.job, unit.count)
            machine = environment(self.pipe.device)
            return Outcome(unit, [{"kind": "target", "entropy": entropy, "environment": machine}])
        values = tv_per_step(self.pipe, self.job, self.job.configs[unit.method])
        line = {"kind": "variation", "method": unit.method, "values": values}
        return Outcome(unit, [line])

    @cached_property
    def pipe(self) -> TokenImagePipeline:
        """The job's pipeline on its device, or spread over several."""
        job = self.job
        pipe: Any = ImagePipeline.from_pretrained(job.model, device_map=job.device_map)
        if job.device_map is None:
            pipe.to(job.device)
        pipe.set_progress_bar_config(disable=True)
        assert isinstance(pipe, TokenImagePipeline)
        return pipe

    @cached_property
    def _speed(self) -> SpeedWorker:
        return SpeedWorker(self.job, self.pipe)

    @cached_property
    def _quality(self) -> QualityWorker:
        return QualityWorker(self.job, self.pipe)
