"""Executors of a run's units: this process, or actors on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Protocol

import torch

from ...errors import InputError
from ...pipelines.notices import timed_apart
from ...registry import check_name
from ..modalities.base import modality
from ..modalities.bench import Bench
from .job import Job, Outcome, Unit

EXECUTORS = ("local", "ray")


class Executor(Protocol):
    """Runs units; the same units give the same outcomes, but for times, wherever they run."""

    def run(self, units: Iterable[Unit], alone: bool = False) -> Iterator[Outcome]:
        """The outcomes, in any order; `alone`: one after the other and nothing beside it."""

    def close(self) -> None:
        """Give back what was taken."""


class Worker:
    """Holds a pipeline and whatever judges its outputs; both are made when first needed.

    Args:
        pipe: the job's pipeline, if there is one already.
    """

    def __init__(self, job: Job, pipe: Any = None) -> None:
        self.job = job
        torch.set_num_threads(job.threads)
        if pipe is not None:
            self.pipe = pipe

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole."""
        with timed_apart():
            return self.bench.run(unit)

    @cached_property
    def bench(self) -> Bench:
        """Bench that does the units."""
        return modality(self.job.suite.pipeline).bench(self.job, self.pipe)

    @cached_property
    def pipe(self) -> Any:
        """The job's pipeline on its device, or spread over several."""
        job = self.job
        return modality(job.suite.pipeline).open(job.model, job.device, job.device_map)


class LocalExecutor:
    """Executor with one worker in this process."""

    def __init__(self, job: Job, pipe: Any = None) -> None:
        self.worker = Worker(job, pipe)

    def run(self, units: Iterable[Unit], alone: bool = False) -> Iterator[Outcome]:
        for unit in units:
            yield self.worker.run(unit)

    def close(self) -> None:
        """Nothing was taken."""


def make_executor(
    name: str,
    job: Job,
    address: str | None = None,
    workers: int | None = None,
    pipe: Any = None,
) -> Executor:
    """An executor by name.

    Args:
        address, workers: of the Ray cluster, and how many actors to start there.
        pipe: the job's pipeline, if this process has loaded it.
    """
    check_name("executor", name, EXECUTORS)
    if name == "local":
        if address is not None or workers is not None:
            raise InputError("--address and --workers are for --executor ray")
        return LocalExecutor(job, pipe)
    from .ray_executor import RayExecutor

    return RayExecutor(job, address, workers)
