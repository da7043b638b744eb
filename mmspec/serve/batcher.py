"""Batcher: jobs wait in one line, and those that can run together do."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import InputError
from .jobs import Job, JobError
from .metrics import RunMetrics
from .requests import ServeLimits

logger = logging.getLogger(__name__)
BROKEN = JobError(500, "something went wrong on the server; its log says what")
LATE = JobError(503, "the request waited too long")
ENDS = JobError(503, "the server ends")
FAILURES = 3  # batches that fail in a row until the server is called unhealthy
GATHER = 0.005  # seconds in which the first of a batch waits for others that arrive with it


class Runner(Protocol):
    """A model that runs jobs."""

    def run(self, jobs: Sequence[Job]) -> None:
        """Run jobs of one key together and tell each its news.

        Raises:
            InputError: one of them can't run; no job was told anything.
        """


class BusyError(Exception):
    """Too many requests wait."""


class Batcher:
    """Thread that runs batches, for pipelines have a state and share the processor.

    The job that waits the longest goes first, with all that can join it.

    Args:
        runners: models by name.
        limits: rows of a batch, and how many may wait.
        metrics: hears of all.
    """

    def __init__(
        self, runners: Mapping[str, Runner], limits: ServeLimits, metrics: RunMetrics
    ) -> None:
        self.runners, self.limits, self.metrics = runners, limits, metrics
        self._waiting: deque[Job] = deque()
        self._news = threading.Condition()
        self._closed, self._failed = False, 0
        self._running: list[Job] = []
        self._thread = threading.Thread(target=self._work, name="batcher", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Put a job at the end of the line.

        Raises:
            BusyError: the line is full, or the server ends.
        """
        with self._news:
            if self._closed or len(self._waiting) >= self.limits.waiting:
                raise BusyError
            self._waiting.append(job)
            self.metrics.waiting.set(len(self._waiting))
            self._news.notify()

    def cancel(self, job: Job) -> None:
        """Give up a job that nobody waits for: its place in the line is free."""
        with self._news:
            job.cancelled = True
            if job in self._waiting:
                self._waiting.remove(job)
                self.metrics.waiting.set(len(self._waiting))

    @property
    def waiting(self) -> int:
        """The number of jobs in the line."""
        return len(self._waiting)

    @property
    def healthy(self) -> bool:
        """False if batches fail one after the other, or nothing runs any more."""
        return self._failed < FAILURES and self._thread.is_alive()

    def end(self) -> None:
        """Begin to end: what waits is refused, what runs is interrupted."""
        with self._news:
            self._closed = True
            for job in [*self._waiting, *self._running]:
                job.cut, job.cancelled = ENDS, True
            self._news.notify()

    def close(self) -> None:
        """End, and wait for it."""
        self.end()
        self._thread.join()

    def _work(self) -> None:
        while (jobs := self._next()) is not None:
            if jobs:
                started = time.monotonic()
                self._run(jobs)
                self.metrics.batch(jobs, time.monotonic() - started)

    def _next(self) -> list[Job] | None:
        """The jobs of the next batch; None: the server ends."""
        with self._news:
            self._running = []
            while not self._waiting and not self._closed:
                self._news.wait()
        time.sleep(GATHER)
        with self._news:
            for job in [job for job in self._waiting if job.idle or self._closed]:
                self._waiting.remove(job)
                self._drop(job)
            if self._closed:
                return None
            batch: list[Job] = []
            rows = 0
            for job in list(self._waiting):
                joins = not batch or (job.model, job.key) == (batch[0].model, batch[0].key)
                if joins and (not batch or rows + job.rows <= self.limits.rows):
                    batch.append(job)
                    rows += job.rows
                    self._waiting.remove(job)
            self.metrics.waiting.set(len(self._waiting))
            self._running = batch
            return batch

    def _drop(self, job: Job) -> None:
        """Tell a job that its turn does not come."""
        job.fail(*(ENDS if self._closed else LATE))

    def _run(self, jobs: list[Job], again: bool = False) -> None:
        """Run jobs; if several fail together, those that have had no news run again, in halves.

        So one that can't run is found in few runs, and most of the others still run together.
        """
        try:
            self.runners[jobs[0].model].run(jobs)
            self._failed = 0
        except Exception as error:
            told = JobError(400, str(error)) if isinstance(error, InputError) else BROKEN
            if told is BROKEN:
                logger.exception("a batch failed")
                self._failed += not again  # it is one batch
            rest = [job for job in jobs if not job.told] if len(jobs) > 1 else []
            for job in jobs:
                if job not in rest:
                    job.fail(*told)
            half = (len(rest) + 1) // 2
            for part in (rest[:half], rest[half:]):
                for job in part:
                    if job.idle:  # by now: runs take their time
                        self._drop(job)
                if alive := [job for job in part if not job.over]:
                    self._run(alive, again=True)
