"""Measurement of vision-language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ....errors import InputError
from ....methods import SpecConfig
from ....pipelines.vlm.pipeline import VlmPipeline
from ...run.job import Job, Plan
from ...run.run_folder import RunFolder
from ..base import Rows
from ..modality import Modality
from .bench import VlmBench
from .blank import looks
from .experts import EXPERT, check_experts, expert_names
from .inputs import check_questions
from .peers import peers
from .rows import complete_rows
from .variants import BLANK, check_method, methods_of


class VlmModality(Modality):
    """Measurement of answers to questions about pictures."""

    pipeline = VlmPipeline
    entropy_samples = 24
    bench = VlmBench

    def check_call(self, pipe: Any, config: SpecConfig, call: Mapping[str, Any]) -> None:
        check_method(pipe, config)

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        if todo.batches != (1,):
            raise InputError("--batch-sizes are for pictures that are drawn; leave them out")
        strange = [name for name in job.files if name != "prompts" and not name.startswith(EXPERT)]
        if strange:
            raise InputError(f"suite {job.suite.name} has no use for {', '.join(strange)}")
        if pipe is not None:
            configs = [check_method(pipe, config) for config in methods_of(job).values()]
            check_experts(job)
            count = min(max(todo.speed, todo.most, self.entropy_samples), len(job.prompts))
            drafts = any("drafter" in config.needs for config in configs)
            check_questions(pipe, [job.prompt(n) for n in range(count)], drafts)

    def variants(self, job: Job) -> list[str]:
        found, suite = methods_of(job), job.suite
        blank = [n + BLANK for n, config in found.items() if suite.blank and looks(config)]
        return [*found, *blank, *(peers(found) if suite.peers else ()), *expert_names(job)]

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        return complete_rows(job, folder.log, rows)
