"""Pictures of continuous tokens: called with other arguments too, and counted by network."""

from __future__ import annotations

from typing import Any

from ...errors import InputError
from ...pipelines.continuous.pipeline import ContinuousImagePipeline
from ...pipelines.prompts import told
from ..metrics.features import SetDistance
from ..run.job import Job
from .drawing import DrawingBench, DrawingModality


class ContinuousModality(DrawingModality):
    """Measurement of image generation with continuous tokens."""

    pipeline = ContinuousImagePipeline
    takes_device_map = False
    bench = DrawingBench

    def check_rows(self, job: Job, pipe: Any) -> None:
        if not pipe.captioned:  # prompts are numbers of classes, which no judge can read
            read = [m.name for m in job.suite.declared if not isinstance(m, SetDistance)]
            if read or job.suite.reference is not None:
                asked = " and ".join(read) or f"reference {job.suite.reference}"
                raise InputError(
                    f"this model is told classes, and {asked} needs captions; use a suite of "
                    "speed, or of distances between sets, such as continuous-classes"
                )
            told([item.prompt for item in job.prompts], None, pipe.class_count)
        super().check_rows(job, pipe)
