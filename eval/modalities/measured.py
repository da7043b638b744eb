"""What is common to modalities: rows of variants, and what a run's lines say of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ..measure.quality import quality_rows
from ..measure.speed import WARMUP, mean_costs, noise_notes, speed_rows
from ..run.job import Job, Plan, Unit
from ..run.run_folder import RunFolder
from ..schema import MethodResult
from ..variants import AGAIN, label, variant_names
from .base import Findings
from .bench import Bench


class MeasuredModality(ABC):
    """The part of `Modality` that does not depend on what is made."""

    @abstractmethod
    def bench(self, job: Job, pipe: Any) -> Bench:
        """See `Modality.bench`."""

    def variants(self, job: Job) -> list[str]:
        """See `Modality.variants`."""
        return variant_names(job)

    def first(self, job: Job) -> list[Unit]:
        """See `Modality.first`: the machine."""
        return [Unit("target", 0, 0)]

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """See `Modality.findings`."""
        log = folder.log
        refused = {line["method"] for line in log.of("refused")}
        timed, judged = log.of("speed") if todo.speed else [], log.of("quality")
        counts = log.of("counts") if todo.quality else timed
        found = Findings({}, costs=mean_costs(timed))
        for group in job.groups.values():
            names = [name for name in group if name not in refused]
            rows = quality_rows(judged, counts, names, job.suite.decides) if judged else {}
            if timed:
                rows = _joined(speed_rows(timed, names), rows)
            for name, row in rows.items():
                self.label(job, name, row)
            found.notes += self.complete(job, todo, folder, rows)
            if timed:
                own = {name: row for name, row in rows.items() if name != AGAIN}
                found.notes += noise_notes(timed, own, names[0])
            found.rows |= rows
        if timed:
            found.settings["warmup_calls"] = WARMUP
        if todo.quality:
            items = {line.get("item", line["prompt"]) for line in judged}
            found.settings["quality_prompts"] = len(items)
        return found

    def label(self, job: Job, name: str, row: MethodResult) -> None:
        """Say what a row is."""
        label(job, name, row)

    def complete(
        self, job: Job, todo: Plan, folder: RunFolder, rows: dict[str, MethodResult]
    ) -> list[str]:
        """Fill in what this modality alone has, of rows that are compared; returns notes."""
        return []


def _joined(
    timed: dict[str, MethodResult], judged: Mapping[str, MethodResult]
) -> dict[str, MethodResult]:
    """Rows from both measurements: what is counted is of the judged samples, which are more."""
    counted = ("n", "nfe_per_sample", "target_tokens_per_sample", "mean_acceptance_length")
    told = ("sibling_calls_per_sample", "accepted_lengths", "acceptance_by_position", "quality")
    for name, row in judged.items():
        for what in (*counted, *told):
            setattr(timed[name], what, getattr(row, what))
        if "reward" in row.phase_seconds:
            timed[name].phase_seconds["reward"] = row.phase_seconds["reward"]
    return timed
