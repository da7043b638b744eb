"""One run at a time, in the order in which visitors came; each can stop its own and no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from ..errors import InputError

logger = logging.getLogger(__name__)
BROKEN = "something went wrong on the server; its log says what"
State = TypeVar("State")
Tell = Callable[[State], None]


class Job(Generic[State]):
    """A run that waits, works or is over; whoever watches gets its latest state.

    Attributes:
        cancelled: True once somebody asked it to stop.
    """

    def __init__(self, visitor: str) -> None:
        self.visitor = visitor
        self.cancelled = False
        self.error: str | None = None
        self._news = threading.Condition()
        self._state: State | None = None
        self._over = False

    @property
    def shown(self) -> bool:
        """Whether the latest state was taken: there is no use for another one before."""
        return self._state is None

    def cancel(self) -> None:
        """Ask it to stop."""
        self.cancelled = True

    def tell(self, state: State) -> None:
        """Put a state in the place of the one before."""
        with self._news:
            self._state = state
            self._news.notify_all()

    def end(self) -> None:
        """It is over: whoever watches is told no more."""
        with self._news:
            self._over = True
            self._news.notify_all()

    def run(self, work: Callable[[Job[State]], None]) -> None:
        """Do the work; whatever goes wrong ends in `error`, one line."""
        try:
            work(self)
        except (InputError, FloatingPointError) as error:
            self.error = str(error)
        except Exception:  # a visitor must never see a trace
            logger.exception("a run of the demo failed")
            self.error = BROKEN
        finally:
            self.end()

    def states(self, pause: float = 0.5) -> Iterator[State | None]:
        """The latest states until it is over; None after a pause without one."""
        while True:
            with self._news:
                if self._state is None and not self._over:
                    self._news.wait(pause)
                state, self._state, over = self._state, None, self._over
            if state is not None or not over:
                yield state
            if over:
                return


class Desk(Generic[State]):
    """The queue.

    Timed runs must not compete, and pipelines have a state: a single thread does all work. The
    first job in the queue is the one at work. A job that is cancelled while it waits is over at
    once, and its place free; the one at work keeps its place until it has stopped.

    Args:
        most: jobs that wait or work.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._worker = ThreadPoolExecutor(1, "mmspec-demo")
        self._lock = threading.Lock()
        self._jobs: list[Job[State]] = []
        self._at_work: Job[State] | None = None

    def submit(self, visitor: str, work: Callable[[Job[State]], None]) -> Job[State]:
        """Queue a visitor's run.

        Raises:
            InputError: the visitor has one already, or too many wait.
        """
        job: Job[State] = Job(visitor)
        with self._lock:
            if any(other.visitor == visitor and not other.cancelled for other in self._jobs):
                raise InputError("your last run is still at work; stop it first")
            if len(self._jobs) >= self.most:
                raise InputError(f"the queue is full: {self.most} runs; try again in a while")
            self._jobs.append(job)
        self._worker.submit(self._run, job, work)
        return job

    def cancel(self, visitor: str) -> bool:
        """Stop a visitor's runs; returns whether there were any."""
        with self._lock:
            own = [job for job in self._jobs if job.visitor == visitor]
        for job in own:
            self.drop(job)
        return bool(own)

    def drop(self, job: Job[State]) -> None:
        """Stop a run; one that waits leaves the queue."""
        job.cancel()
        with self._lock:
            waits = job in self._jobs and job is not self._at_work
            if waits:
                self._jobs.remove(job)
        if waits:
            job.end()

    def ahead(self, job: Job[State]) -> int:
        """Jobs in front of one; 0: it is at work or over."""
        with self._lock:
            return self._jobs.index(job) if job in self._jobs else 0

    def close(self) -> None:
        """Stop everything, and wait for it."""
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            self.drop(job)
        self._worker.shutdown()

    def _run(self, job: Job[State], work: Callable[[Job[State]], None]) -> None:
        with self._lock:
            if job not in self._jobs:  # it was cancelled while it waited
                return
            self._at_work = job
        try:
            job.run(work)
        finally:
            with self._lock:
                self._jobs.remove(job)
                self._at_work = None
