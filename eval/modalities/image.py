"""Pictures from prompts: drawn, timed, judged alone and as sets, and compared in pairs."""

from __future__ import annotations

import inspect
from functools import cached_property
from pathlib import Path
from typing import Any

from ...methods import serving
from ...pipelines.image import ImagePipeline
from ...pipelines.token_image import TokenImagePipeline
from ...worlds.shapes import Prompt
from ..data.prompts import load_prompts
from ..environment import environment
from ..methods import place, role
from ..metrics.table import METRICS
from ..quality import QualityWorker, quality_rows, target_entropy
from ..run.job import Job, Outcome, Plan, Unit
from ..run.run_folder import RunFolder
from ..schema import MethodResult
from ..scorers import check_files
from ..speed import WARMUP, SpeedWorker, mean_costs, noise_notes, speed_rows
from ..suite import Suite
from ..variation import summarize, tv_per_step
from .base import Findings
from .image_sets import compare_sets

ENTROPY_SAMPLES = 24


class ImageModality:
    """See `Modality`."""

    metrics = ("geneval", "dpg", *(n for n, m in METRICS.items() if m.kind != "pairs"))
    options: tuple[str, ...] = ()

    def arguments(self) -> set[str]:
        """See `Modality.arguments`."""
        taken = set(inspect.signature(ImagePipeline.__call__).parameters)
        laws = set(inspect.signature(ImagePipeline.token_laws).parameters)  # these are measured too
        return taken & laws - {"self", "prompt"}

    def items(self, suite: Suite, path: Path | None) -> tuple[Prompt, ...]:
        """See `Modality.items`."""
        return load_prompts(suite, path)

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """See `Modality.open`."""
        pipe: Any = ImagePipeline.from_pretrained(model, device_map=device_map)
        if device_map is None:
            pipe.to(device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def methods(self, pipe: Any) -> tuple[str, ...]:
        """See `Modality.methods`: all there are."""
        return tuple(serving("image"))

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """See `Modality.check`."""
        check_files(job)
        if pipe is not None:
            for config in job.configs.values():
                pipe.check_speculation(config)
            pipe.network(job.call.get("height"), None)

    def rows(self, job: Job) -> list[str]:
        """See `Modality.rows`."""
        return list(job.configs)

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: the target's laws, and what the rules make of them."""
        drafting = [name for name in job.configs if name != "plain"]
        target = Unit("target", 0, min(ENTROPY_SAMPLES, len(job.prompts)))
        return [target, *(Unit("variation", method=name) for name in drafting)]

    def bench(self, job: Job, pipe: Any) -> ImageBench:
        """See `Modality.bench`."""
        return ImageBench(job, pipe)

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        log, methods = folder.log, list(job.configs)
        found = Findings({})
        if todo.quality:
            judged = log.of("quality")
            found.rows = quality_rows(judged, log.of("counts"), methods, job.suite.decides)
            found.notes += compare_sets(job, folder, found.rows)
            found.settings["quality_prompts"] = len({line["prompt"] for line in judged})
        if todo.speed:
            lines = log.of("speed")
            timed = speed_rows(lines, methods)
            found.costs = mean_costs(lines)
            found.rows = {name: _joined(timed[name], found.rows.get(name)) for name in methods}
            found.notes += noise_notes(lines, timed)
            found.settings["warmup_calls"] = WARMUP
        for name, row in found.rows.items():
            row.role = role(name, job.configs[name])
            row.family, row.knob, row.knob_value = place(job.configs[name])
        for line in log.of("variation"):
            found.rows[line["method"]].tv_per_step = summarize(line["values"])
        return found


class ImageBench:
    """See `Bench`; workers are made when first needed."""

    def __init__(self, job: Job, pipe: TokenImagePipeline) -> None:
        self.job, self.pipe = job, pipe

    def run(self, unit: Unit) -> Outcome:
        """See `Bench.run`."""
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
    def _speed(self) -> SpeedWorker:
        return SpeedWorker(self.job, self.pipe)

    @cached_property
    def _quality(self) -> QualityWorker:
        return QualityWorker(self.job, self.pipe)


def _joined(timed: MethodResult, judged: MethodResult | None) -> MethodResult:
    """One row from both measurements: what is counted from the judged samples, which are more."""
    if judged is None:
        return timed
    for name in ("n", "nfe_per_sample", "target_tokens_per_sample", "mean_acceptance_length"):
        setattr(timed, name, getattr(judged, name))
    timed.acceptance_by_position = judged.acceptance_by_position
    timed.quality = judged.quality
    timed.phase_seconds["reward"] = judged.phase_seconds["reward"]
    return timed
