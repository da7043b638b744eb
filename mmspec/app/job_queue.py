"""One run at a time, in the order in which visitors came; each can stop its own and no other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from ..errors import InputError
from .folders import is_loopback

logger = logging.getLogger(__name__)
BROKEN = "something went wrong on the server; its log says what"
State = TypeVar("State")
Tell = Callable[[State], None]


class QueuedJob(Generic[State]):
    """A run that waits, works or is over; whoever watches gets its latest state.

    Attributes:
        cancelled: True once somebody asked it to stop.
    """

    def __init__(self, visitor: str, host: str | None = None) -> None:
        self.visitor, self.host = visitor, host
        self.cancelled = False
        self.error: str | None = None
        self._news = threading.Condition()
        self._state: State | None = None
        self._over = False
        self._stop: Callable[[], None] | None = None
        self._asked = False  # to stop, and whoever watches does not know yet

    @property
    def shown(self) -> bool:
        """Whether the latest state was taken: there is no use for another one before."""
        return self._state is None

    def cancel(self) -> None:
        """Ask it to stop; whoever watches is woken."""
        with self._news:
            self.cancelled = self._asked = True
            if self._stop is not None:
                self._stop()
            self._news.notify_all()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, whoever asks the job to stop calls this as well."""
        with self._news:
            self._stop = stop
        try:
            yield
        finally:
            with self._news:
                self._stop = None

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

    def run(self, work: Callable[[QueuedJob[State]], None]) -> None:
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
        """The latest states until it is over; None after a pause without one, and when it is asked
        to stop."""
        while True:
            with self._news:
                if self._state is None and not self._over and not self._asked:
                    self._news.wait(pause)
                state, self._state, over = self._state, None, self._over
                self._asked = self._asked and state is not None
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
        most, most_of_host: jobs that wait or work; those of one host.
    """

    def __init__(self, most: int, most_of_host: int) -> None:
        self.most, self.most_of_host = most, most_of_host
        self._worker = ThreadPoolExecutor(1, "mmspec-demo")
        self._lock = threading.Lock()
        self._jobs: list[QueuedJob[State]] = []
        self._at_work: QueuedJob[State] | None = None

    def submit(
        self, visitor: str, host: str | None, work: Callable[[QueuedJob[State]], None]
    ) -> QueuedJob[State]:
        """Queue a visitor's run.

        Args:
            visitor, host: as `visitor_of` tells them.
            work: does it.

        Raises:
            InputError: the visitor has one already, or too many wait.
        """
        job: QueuedJob[State] = QueuedJob(visitor, host)
        with self._lock:
            live = [other for other in self._jobs if not other.cancelled]
            if any(other.visitor == visitor for other in live):
                raise InputError("your last run is still at work; stop it first")
            if host and sum(other.host == host for other in live) >= self.most_of_host:
                raise InputError(
                    f"{self.most_of_host} runs from your address are in the queue; try again in a "
                    "while"
                )
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

    def drop(self, job: QueuedJob[State]) -> None:
        """Stop a run; one that waits leaves the queue."""
        job.cancel()
        with self._lock:
            waits = job in self._jobs and job is not self._at_work
            if waits:
                self._jobs.remove(job)
        if waits:
            job.end()

    def ahead(self, job: QueuedJob[State]) -> int:
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

    def _run(self, job: QueuedJob[State], work: Callable[[QueuedJob[State]], None]) -> None:
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


def visitor_of(request: Any) -> tuple[str, str | None]:
    """Who asks, and the host of one who is not at this machine; None: at it, or behind its proxy.

    Raises:
        InputError: the request is of no session, by which a visitor would be known again.
    """
    if not request.session_hash:
        raise InputError("this request belongs to no page; open the demo in a browser")
    host = getattr(request.client, "host", None)
    return str(request.session_hash), None if host is None or is_loopback(host) else host
