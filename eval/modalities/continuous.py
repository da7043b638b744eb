"""Pictures of continuous tokens: called with other arguments too, and counted by network."""

from __future__ import annotations

import inspect
from typing import Any

from ...config import SpecConfig
from ...errors import InputError
from ...pipelines.continuous.pipeline import ContinuousImagePipeline
from ...pipelines.prompts import classes
from ..metrics.features import SetDistance
from ..run.job import Job, Unit
from ..variants import arm
from .base import runnable
from .drawing import DrawingBench, DrawingModality

FIXED = {
    *("self", "prompt", "class_labels", "num_images_per_prompt", "generator"),
    *("output_type", "return_dict", "callback_on_step_end", "callback_on_step_end_tensor_inputs"),
}


class ContinuousModality(DrawingModality):
    """See `Modality`."""

    options = ("sceptics", "again")

    def arguments(self) -> set[str]:
        """See `Modality.arguments`."""
        return set(inspect.signature(ContinuousImagePipeline.__call__).parameters) - FIXED

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """See `Modality.open`."""
        if device_map is not None:
            raise InputError("--device-map spreads models of token ids; leave it out")
        pipe: Any = ContinuousImagePipeline.from_pretrained(model).to(device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        """See `Modality.methods`: those that the pipeline's parts and the arguments allow."""

        def check(config: SpecConfig) -> None:
            pipe.check_call(config, **call)

        return runnable("continuous", None if pipe is None else check)

    def check_rows(self, job: Job, pipe: Any) -> None:
        """See `DrawingModality.check_rows`."""
        if not pipe.captioned:
            self._check_classes(job, pipe)
        for name in self.rows(job):
            drawn_by = arm(job, name)
            try:
                pipe.check_call(drawn_by.config, **drawn_by.call)
            except InputError as error:
                raise InputError(f"{name}: {error}") from error

    def _check_classes(self, job: Job, pipe: Any) -> None:
        """A model that is told classes takes their numbers for prompts, which no judge can read."""
        read = [m.name for m in job.suite.declared if not isinstance(m, SetDistance)]
        if read or job.suite.reference is not None:
            asked = " and ".join(read) or f"reference {job.suite.reference}"
            raise InputError(
                f"this model is told classes, and {asked} needs captions; use a suite of speed, or "
                "of distances between sets, such as continuous-classes"
            )
        classes([item.prompt for item in job.prompts], None, pipe.transformer.config.class_num)

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: the machine."""
        return [Unit("target", 0, 0)]

    def bench(self, job: Job, pipe: Any) -> DrawingBench:
        """See `Modality.bench`."""
        return DrawingBench(job, pipe)
