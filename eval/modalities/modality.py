"""Interface of a modality; the rest of `eval` asks only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from ...errors import InputError
from ...methods import SpecConfig, serving
from ...pipelines.base import SpeculativePipeline
from ..measure.quality import quality_rows
from ..measure.speed import WARMUP, mean_costs, noise_notes, speed_rows
from ..run.job import Job, Plan, Unit
from ..run.run_folder import RunFolder
from ..sweeps import parse_methods
from ..variants import AGAIN, label, variant_names
from .base import Findings, Rows
from .bench import Bench


class Modality(ABC):
    """A modality: its pipeline, who makes its rows, and what a run's lines say of them.

    Attributes:
        pipeline: the class.
        model: that is measured where none is named; None: the pipeline's embedded one.
        takes_device_map: whether its models can be told devices by a map.
        entropy_samples: those whose laws are looked at, at most.
        bench: who does the units of a job, made with it and a pipeline.
    """

    pipeline: ClassVar[type[SpeculativePipeline]]
    model: ClassVar[str | None] = None
    takes_device_map = True
    entropy_samples = 0
    bench: ClassVar[type[Bench]]

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """A pipeline; None: the embedded model's.

        Raises:
            InputError: it can't be loaded.
        """
        if device_map is not None and not self.takes_device_map:
            raise InputError("--device-map spreads models of token ids; leave it out")
        pipe: Any = self.pipeline.from_pretrained(model, device_map=device_map)
        if device_map is None:
            pipe.to(device)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        """Methods measured by default: those that the pipeline's parts and a call allow.

        Args:
            pipe: the pipeline; None: it is loaded elsewhere.
            call: arguments of its calls.
        """
        if pipe is None:
            told = "say which --methods to measure: what can run is known to workers only"
            raise InputError(told)
        found = []
        for name, config in parse_methods(tuple(serving(self.pipeline.modality))).items():
            try:
                self.check_call(pipe, config, call)
            except InputError:
                continue
            found.append(name)
        return tuple(found)

    def check_call(self, pipe: Any, config: SpecConfig, call: Mapping[str, Any]) -> None:
        """Raise an `InputError` if a pipeline can't make a call by a method."""
        pipe.check_call(config, **call)

    @abstractmethod
    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """Raise an `InputError` if the job can't be done; before any work.

        Args:
            pipe: the job's pipeline; None: it is loaded elsewhere.
        """

    def variants(self, job: Job) -> list[str]:
        """The names of those who make outputs, the baseline first: a row in every way to call."""
        return variant_names(job)

    def first(self, job: Job, todo: Plan) -> list[Unit]:
        """Units that come before speed and quality: the machine, and the target's laws."""
        count = min(self.entropy_samples, len(job.prompts))
        if todo.limited:  # nobody reports what is found in a few
            count = min(count, max(todo.speed, todo.quality))
        return [Unit("target", 0, count)]

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """The rows of the report, from the run's folder."""
        log = folder.log
        refused = {line["method"]: line["reason"] for line in log.of("refused")}
        says = "{}: left out, {} says: {}".format  # a peer's name begins with its library's
        told = [says(name, name.partition(":")[0], why) for name, why in refused.items()]
        timed, judged = log.of("speed") if todo.speed else [], log.of("quality")
        # outputs that are timed alone are those that are judged: of batches nothing is counted
        alone = [line for line in timed if line["batch"] == 1]
        counts = log.of("counts") if todo.quality else alone
        found = Findings({}, told, mean_costs(timed))
        for group in job.groups.values():
            names = [name for name in group if name not in refused]
            rows = quality_rows(judged, counts, names, job.suite.decides) if judged else {}
            if timed:
                rows = _joined(speed_rows(timed, names), rows, others=bool(todo.quality))
            for name, row in rows.items():
                label(job, name, row)
            found.notes += self.complete(job, folder, rows)
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

    def complete(self, job: Job, folder: RunFolder, rows: Rows) -> list[str]:
        """Fill in what this modality alone has, of rows that are compared; returns notes."""
        return []


def _joined(timed: Rows, judged: Rows, others: bool) -> Rows:
    """Rows from both measurements: what is counted is of the judged samples, which are more.

    Args:
        others: these are other samples than those that are timed, so an interval of either is too.
    """
    counted = ("n", "nfe_per_sample", "target_tokens_per_sample", "mean_acceptance_length")
    spread = ("mean_acceptance_length_ci95",) if others else ()
    told = ("sibling_calls_per_sample", "accepted_lengths", "acceptance_by_position", "quality")
    for name, row in judged.items():
        for what in (*counted, *spread, *told):
            setattr(timed[name], what, getattr(row, what))
        if "reward" in row.phase_seconds:
            timed[name].phase_seconds["reward"] = row.phase_seconds["reward"]
    return timed
