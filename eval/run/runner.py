"""A run: units of work planned, done and logged, and a report of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ... import __version__
from ..files import fingerprint
from ..measure.quality import quality_rows
from ..modalities.base import modality
from ..schema import Report
from .executor import Executor, make_executor
from .job import QUALITY_BATCH, Job, Plan, Unit, quality_units
from .run_folder import RunFolder
from .summary import summarize_run

Progress = Callable[[int, int], None]
GROWTH = 1.5  # by which an undecided comparison's samples grow each time


def run_suite(
    job: Job,
    todo: Plan,
    out: Path,
    command: Sequence[str] = (),
    progress: Progress | None = None,
    **hands: Any,
) -> Report:
    """Do what is not done yet in `out`, and write `report.json`, `report.md` and `report.html`.

    A run that was stopped, however, goes on where it was when it is started again.

    Args:
        progress: told how many samples are done, and of how many.
        hands: who does the work, see `make_executor`.

    Raises:
        InputError: a metric lacks its weights or reference, or `out` holds another run.
    """
    from ..report.pages import write_reports

    modality(job.suite.pipeline).check(job, todo, hands.get("pipe"))
    executor = make_executor(job=job, **{"name": "local", **hands})
    try:
        with RunFolder(out, _settings(job, todo)) as folder:
            _Run(job, todo, folder, executor, progress)()
            report = summarize_run(job, todo, folder, command)
            report.write(out)
    finally:
        executor.close()
    write_reports(out)
    return report


def _settings(job: Job, todo: Plan) -> dict[str, Any]:
    """Settings that samples depend on, defaults of methods as well; a run may be extended."""
    made = modality(job.suite.pipeline).pipeline.modality
    return {
        "mmspec": __version__,
        "torch": torch.__version__,
        "suite": asdict(job.suite),
        "prompts": [p.metadata() for p in job.prompts],
        "methods": {n: c.resolve(made).to_dict() for n, c in job.configs.items()},
        "call": job.call,
        "seed": job.seed,
        "model": job.model or "embedded",
        "device": job.device,
        "device_map": job.device_map,
        "files": job.files,
        **({"weights": found} if (found := _weights(job)) else {}),
        "threads": job.threads,
        "batches": list(todo.batches),
    }


def _weights(job: Job) -> dict[str, str]:
    """Fingerprints of the files here that samples depend on: those that are retrained differ."""
    named = {"model": job.model, **job.files}
    here = {name: Path(path) for name, path in named.items() if path and name != "reference"}
    return {name: fingerprint(path) for name, path in here.items() if path.exists()}


class _Run:
    """The units of a run that are still to do, one kind after the other."""

    def __init__(
        self, job: Job, todo: Plan, folder: RunFolder, hands: Executor, progress: Progress | None
    ) -> None:
        self.job, self.todo, self.folder, self.hands = job, todo, folder, hands
        self.progress = progress
        self.done = self.planned = 0

    def __call__(self) -> None:
        """Do them."""
        job, todo = self.job, self.todo
        timed = todo.speed_units()
        self.planned = sum(unit.samples(job) for unit in timed) + todo.quality * len(job.rows)
        self._work(modality(job.suite.pipeline).first(job, todo))
        self._work(timed, alone=True)
        samples = todo.quality
        self._draw(samples)
        while samples < todo.most and not self._decided(samples):
            grown = round(samples * GROWTH / QUALITY_BATCH) * QUALITY_BATCH
            samples = min(todo.most, max(grown, samples + QUALITY_BATCH))
            self._draw(samples)

    def _draw(self, samples: int) -> None:
        """Have so many samples of every row that is not left out."""
        rows = self._rows()
        timed = sum(unit.samples(self.job) for unit in self.todo.speed_units())
        self.planned = timed + samples * len(rows)
        drawn: dict[str, set[int]] = {}
        for line in self.folder.log.of("quality"):
            drawn.setdefault(line["method"], set()).add(line["index"])
        self.done = timed + sum(index < samples for own in drawn.values() for index in own)
        self._work(list(quality_units(rows, samples, drawn)))

    def _rows(self) -> list[str]:
        """The rows that nobody has refused."""
        refused = {line["method"] for line in self.folder.log.of("refused")}
        return [name for name in self.job.rows if name not in refused]

    def _work(self, units: list[Unit], alone: bool = False) -> None:
        known = self.folder.log.done
        self.done += sum(unit.samples(self.job) for unit in units if unit.key in known)
        self._tell()
        for outcome in self.hands.run([unit for unit in units if unit.key not in known], alone):
            self.folder.add(outcome)
            self.done += outcome.unit.samples(self.job)
            self._tell()

    def _tell(self) -> None:
        if self.progress is not None:
            self.progress(self.done, self.planned)

    def _decided(self, samples: int) -> bool:
        """True if the first metric's interval lies on one side of the margin for every method, or
        no sample has a figure of it."""
        job, log = self.job, self.folder.log
        lines = [line for line in log.of("quality") if line["index"] < samples]
        rows = quality_rows(lines, log.of("counts"), self._rows(), job.suite.decides)
        first = (row.quality.get(job.suite.metrics[0]) for row in rows.values())
        return all(quality is None or quality.verdict != "undecided" for quality in first)
