"""Questions about pictures: answered, timed beside transformers' own generation, and graded."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...pipelines.vlm.pipeline import VlmPipeline
from ..data.picture_questions import Asked, read_asked
from ..data.prompts import prompt_files
from ..metrics.graded_answers import AnswerGrade
from ..run.job import Job, Plan, Unit
from ..run.run_folder import RunFolder
from ..suite import Suite
from ..vlm.bench import VlmBench, arms_of, methods_of, row_name
from ..vlm.experts import EXPERT, check_experts
from ..vlm.findings import vlm_findings
from ..vlm.inputs import check_asked
from .base import Findings, runnable

ENTROPY_SAMPLES = 24
FIXED = {"self", "prompt", "image", "generator", "streamer", "return_dict", "callback_on_step_end"}


class VlmModality:
    """See `Modality`."""

    metric_kinds = (AnswerGrade,)
    options = ("calls", "peers", "blank", "verdict")

    def arguments(self) -> set[str]:
        """See `Modality.arguments`."""
        return set(inspect.signature(VlmPipeline.__call__).parameters) - FIXED

    def items(self, suite: Suite, path: Path | None) -> tuple[Asked, ...]:
        """See `Modality.items`."""
        paths = prompt_files(suite) if path is None else [path]
        return tuple(item for file in paths for item in read_asked(file))

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """See `Modality.open`."""
        pipe: Any = VlmPipeline.from_pretrained(model, device_map=device_map)
        return pipe.to(device)

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        """See `Modality.methods`: those whose parts the pipeline has."""
        return runnable("vlm", None if pipe is None else pipe.check_speculation)

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """See `Modality.check`."""
        if todo.batches != (1,):
            raise InputError("--batch-sizes are for pictures that are drawn; leave them out")
        strange = [name for name in job.files if name != "prompts" and not name.startswith(EXPERT)]
        if strange:
            raise InputError(f"suite {job.suite.name} has no use for {', '.join(strange)}")
        if pipe is not None:
            configs = [config.serving("vlm") for config in methods_of(job).values()]
            for config in configs:
                pipe.check_speculation(config)
            check_experts(job)
            asked = max(todo.speed, todo.most, ENTROPY_SAMPLES)
            drafts = any("drafter" in config.needs for config in configs)
            check_asked(pipe, [job.prompt(n) for n in range(min(asked, len(job.prompts)))], drafts)

    def rows(self, job: Job) -> list[str]:
        """See `Modality.rows`."""
        return [row_name(arm, call) for call in job.calls for arm in arms_of(job)]

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: how open the target's answers are."""
        return [Unit("target", 0, min(ENTROPY_SAMPLES, len(job.prompts)))]

    def bench(self, job: Job, pipe: Any) -> VlmBench:
        """See `Modality.bench`."""
        return VlmBench(job, pipe)

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        return vlm_findings(job, todo, folder)
