"""Batcher: jobs wait in one line, and those that can run together do."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from ..errors import InputError
from .jobs import Job
from .metrics import Metrics
from .requests import ServeLimits

logger = logging.getLogger(__name__)
BROKEN = "something went wrong on the server; its log says what"
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
        self, runners: Mapping[str, Runner], limits: ServeLimits, metrics: Metrics
    ) -> None:
        self.runners, self.limits, self.metrics = runners, limits, metrics
        self._waiting: deque[Job] = deque()
        self._news = threading.Condition()
        self._closed = False
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

    @property
    def waiting(self) -> int:
        """The number of jobs in the line."""
        return len(self._waiting)

    def close(self) -> None:
        """End: what waits is refused, what runs is interrupted."""
        with self._news:
            self._closed = True
            for job in [*self._waiting, *self._running]:
                job.cancelled = True
            self._news.notify()
        self._thread.join()

    def _work(self) -> None:
        while True:
            jobs = self._next()
            if jobs is None:
                return
            if jobs:
                started = time.monotonic()
                self._running = jobs
                self._run(jobs)
                self._running = []
                self.metrics.batch(jobs, time.monotonic() - started)

    def _next(self) -> list[Job] | None:
        """The jobs of the next batch; None: the server ends."""
        with self._news:
            while not self._waiting and not self._closed:
                self._news.wait()
        time.sleep(GATHER)
        with self._news:
            for job in [job for job in self._waiting if job.idle or self._closed]:
                self._waiting.remove(job)
                job.fail(503, "the server ends" if self._closed else "the request waited too long")
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
            return batch

    def _run(self, jobs: list[Job]) -> None:
        """Run jobs; if one of several can't, each runs alone."""
        try:
            self.runners[jobs[0].model].run(jobs)
        except InputError as error:
            if len(jobs) == 1:
                jobs[0].fail(400, str(error))
            for job in jobs if len(jobs) > 1 else ():
                self._run([job])
        except Exception:
            logger.exception("a batch failed")
            for job in jobs:
                job.fail(500, BROKEN)
