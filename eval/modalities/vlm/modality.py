"""What vision-language models know of measuring themselves."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ....config import SpecConfig
from ....errors import InputError
from ....pipelines.vlm.pipeline import VlmPipeline
from ...data.picture_questions import PictureQuestion, read_picture_questions
from ...data.prompts import prompt_files
from ...run.job import Job, Plan, Unit
from ...run.run_folder import RunFolder
from ...schema import MethodResult
from ...suite import Suite
from ..base import Findings
from ..modality import Modality
from .bench import VlmBench
from .experts import EXPERT, check_experts
from .inputs import check_questions
from .rows import complete_rows
from .variants import methods_of, role_of, vlm_variant_names

ENTROPY_SAMPLES = 24


class VlmModality(Modality):
    """See `Modality`."""

    pipeline = VlmPipeline
    fixed = frozenset(
        ("self", "prompt", "image", "generator", "streamer", "return_dict", "callback_on_step_end")
    )
    metrics = ("accuracy", "truthfulness", "coverage")
    options = ("calls", "peers", "blank", "verdict")

    def items(self, suite: Suite, path: Path | None) -> tuple[PictureQuestion, ...]:
        """See `Modality.items`."""
        paths = prompt_files(suite) if path is None else [path]
        return tuple(item for file in paths for item in read_picture_questions(file))

    def check_call(self, pipe: Any, config: SpecConfig, call: Mapping[str, Any]) -> None:
        """See `Modality.check_call`."""
        pipe.check_speculation(config)

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
            count = min(max(todo.speed, todo.most, ENTROPY_SAMPLES), len(job.prompts))
            drafts = any("drafter" in config.needs for config in configs)
            check_questions(pipe, [job.prompt(n) for n in range(count)], drafts)

    def variants(self, job: Job) -> list[str]:
        """See `Modality.variants`."""
        return vlm_variant_names(job)

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: how open the target's answers are."""
        return [Unit("target", 0, min(ENTROPY_SAMPLES, len(job.prompts)))]

    def bench(self, job: Job, pipe: Any) -> VlmBench:
        """See `Modality.bench`."""
        return VlmBench(job, pipe)

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        found = super().findings(job, todo, folder)
        refused = {line["method"]: line["reason"] for line in folder.log.of("refused")}
        told = [f"{name}: left out, transformers says: {why}" for name, why in refused.items()]
        found.notes = [*told, *found.notes]
        return found

    def label(self, job: Job, name: str, row: MethodResult) -> None:
        """See `Modality.label`."""
        super().label(job, name, row)
        row.role = role_of(name) or row.role

    def complete(
        self, job: Job, todo: Plan, folder: RunFolder, rows: dict[str, MethodResult]
    ) -> list[str]:
        """See `Modality.complete`: lengths, choices, members, and who answers alike."""
        call = next(iter(rows.values())).call
        return complete_rows(rows, folder.log, greedy=not job.calls[call].get("temperature", 0.0))
