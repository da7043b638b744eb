"""What is common to modalities that draw pictures from prompts: timed, judged alone and as sets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.prompts import load_prompts
from ..environment import dtype_name, environment
from ..measure.ideal_speedup import BareCosts
from ..measure.quality import QualityWorker, quality_rows
from ..measure.scorers import check_files
from ..measure.speed import WARMUP, SpeedWorker, mean_costs, noise_notes, speed_rows
from ..metrics.base import Metric, PictureMetric
from ..metrics.features import SetDistance
from ..run.job import Job, Outcome, Plan, Unit
from ..run.run_folder import RunFolder
from ..run.samples import SampleLog
from ..schema import MethodResult
from ..suite import Suite
from ..variants import AGAIN, arm_names, label
from .base import Findings, PromptItem
from .image_sets import compare_sets


class DrawingModality(ABC):
    """The part of `Modality` that does not depend on what a picture's tokens are."""

    metric_kinds: tuple[type[Metric], ...] = (PictureMetric, SetDistance)
    options: tuple[str, ...] = ("again",)

    def items(self, suite: Suite, path: Path | None) -> tuple[PromptItem, ...]:
        """See `Modality.items`."""
        return load_prompts(suite, path)

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """See `Modality.check`."""
        check_files(job)
        if pipe is not None:
            self.check_rows(job, pipe)

    @abstractmethod
    def check_rows(self, job: Job, pipe: Any) -> None:
        """Raise an `InputError` if a pipeline can't draw a job's rows."""

    def rows(self, job: Job) -> list[str]:
        """See `Modality.rows`."""
        return arm_names(job)

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        log, names = folder.log, arm_names(job)
        found = Findings({})
        if todo.quality:
            judged = log.of("quality")
            found.rows = quality_rows(judged, log.of("counts"), names, job.suite.decides)
            found.notes += compare_sets(job, folder, found.rows)
            found.settings["quality_prompts"] = len({line["prompt"] for line in judged})
        if todo.speed:
            lines = log.of("speed")
            timed = speed_rows(lines, names)
            found.costs = mean_costs(lines)
            found.rows = {name: _joined(timed[name], found.rows.get(name)) for name in names}
            found.settings["warmup_calls"] = WARMUP
        self.label(job, found.rows, log)
        if todo.speed:
            own = {name: row for name, row in found.rows.items() if name != AGAIN}
            found.notes += noise_notes(log.of("speed"), own)
        return found

    def label(self, job: Job, rows: Mapping[str, MethodResult], log: SampleLog) -> None:
        """Say what each row is."""
        for name, row in rows.items():
            label(job, name, row)


class DrawingBench:
    """See `Bench`; workers are made when first needed."""

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.pipe = job, pipe

    def run(self, unit: Unit) -> Outcome:
        """See `Bench.run`."""
        if unit.kind == "speed":
            return self._speed.run(unit)
        if unit.kind == "quality":
            return self._quality.run(unit)
        machine = environment(self.pipe.device)
        machine |= {"dtype": dtype_name(self.pipe.dtype), "resolution": self.resolution()}
        line = {"kind": "target", "entropy": self.entropy(unit.count), "environment": machine}
        return Outcome(unit, [line])

    def resolution(self) -> str:
        """Of what is drawn: pixels down and across."""
        side = self.job.call.get("height") or self.pipe.default_size
        return f"{side}×{side} px"

    def entropy(self, count: int) -> float | None:
        """Of the target's laws on the first `count` samples; None: it has none that are counted."""
        return None

    def costs(self) -> Mapping[str, BareCosts] | None:
        """Of bare forward passes by network; None: they are not timed."""
        return None

    @cached_property
    def _speed(self) -> SpeedWorker:
        return SpeedWorker(self.job, self.pipe, self.costs())

    @cached_property
    def _quality(self) -> QualityWorker:
        return QualityWorker(self.job, self.pipe)


def _joined(timed: MethodResult, judged: MethodResult | None) -> MethodResult:
    """One row from both measurements: what is counted from the judged samples, which are more."""
    if judged is None:
        return timed
    for name in (
        *("n", "nfe_per_sample", "target_tokens_per_sample", "mean_acceptance_length"),
        *("sibling_calls_per_sample", "accepted_lengths"),
    ):
        setattr(timed, name, getattr(judged, name))
    timed.acceptance_by_position = judged.acceptance_by_position
    timed.quality = judged.quality
    timed.phase_seconds |= {p: t for p, t in judged.phase_seconds.items() if p == "reward"}
    return timed
