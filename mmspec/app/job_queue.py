"""Job queue beside Gradio's: a limit for each visitor, and runs that end when asked.

Gradio keeps the runs in order, one at a time, shows each its place, and takes no more than there is
room for (`concurrency_id`, `concurrency_limit`, `max_size`). It has no limits by visitor, and it
gives the place of a run that is cancelled away before its thread is done.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import Any, Generic, TypeVar

from ..errors import InputError
from ..hosts import is_loopback

RUNS = "runs"  # the id of Gradio's queue for them
State = TypeVar("State")
Work = Callable[["QueuedJob[State]"], None]


class QueuedJob(Generic[State]):
    """A run of an owner, in another thread; whoever watches gets its latest state.

    Attributes:
        cancelled: it was asked to stop.
        last: the latest state.
        shown: whether that was taken: there is no use for another one before.
        done: its end, and what went wrong.
    """

    done: Future[None]

    def __init__(self, owner: object) -> None:
        self.owner, self.cancelled, self.shown = owner, False, True
        self.last: State | None = None
        self._news, self._lock = threading.Event(), threading.Lock()
        self._stop: Callable[[], None] | None = None

    def cancel(self) -> None:
        """Ask it to stop; one that has not begun never will."""
        with self._lock:
            self.cancelled = True
            if not self.done.cancel() and self._stop is not None:
                self._stop()

    @contextmanager
    def stopped_by(self, stop: Callable[[], None]) -> Iterator[None]:
        """Call `stop`, too, if the job is asked to stop while the block runs."""
        with self._lock:
            self._stop = stop
        try:
            yield
        finally:
            with self._lock:
                self._stop = None

    def tell(self, state: State) -> None:
        self.last, self.shown = state, False
        self._news.set()

    def states(self, pause: float = 0.5) -> Iterator[State | None]:
        """The latest states until it is over, the last of all surely; None: none for a while."""
        self.done.add_done_callback(lambda _: self._news.set())
        while not self.done.done():
            news = self._news.wait(pause)
            self._news.clear()
            self.shown = True
            yield self.last if news else None
        yield self.last


class JobQueue(Generic[State]):
    """The runs of all visitors; of those at one other machine `most_of_host` wait or work."""

    def __init__(self, most_of_host: int) -> None:
        self.most_of_host = most_of_host
        # timed runs must not compete, and pipelines have a state
        self._worker = ThreadPoolExecutor(1, "run")
        self._jobs: deque[QueuedJob[State]] = deque(maxlen=16)  # at work or cancelled

    def check(self, queue: Any, request: Any, itself: bool = False) -> None:
        """Refuse a visitor who has a run already, or whose host has too many.

        `itself`: the request is in Gradio's queue, too, whose own lists are read here.
        """
        visitor, host = visitor_of(request)
        events = runs(queue)
        if sum(event.session_hash == visitor for event in events) > itself:
            raise InputError("your last run is still at work; stop it first")
        same = sum(_host(event.request) == host for event in events)
        if host is not None and same >= self.most_of_host + itself:
            raise InputError(
                f"{self.most_of_host} runs from your address are in the queue; try again in a while"
            )

    @property
    def busy(self) -> bool:
        """True while a run is at work, which may be one that was cancelled."""
        return any(not job.done.done() for job in self._jobs)

    def start(self, owner: object, work: Work[State]) -> QueuedJob[State]:
        job: QueuedJob[State] = QueuedJob(owner)
        job.done = self._worker.submit(work, job)
        self._jobs.append(job)
        return job

    def forget(self, job: QueuedJob[State]) -> None:
        """Drop a run that is over and that nobody asks for again."""
        with suppress(ValueError):  # many were cancelled since
            self._jobs.remove(job)

    def cancelled(self, owner: object) -> QueuedJob[State] | None:
        """The cancelled run of an owner, once it is over; None: it had not begun."""
        job = next((job for job in self._jobs if job.owner == owner and job.cancelled), None)
        if job is not None:
            wait([job.done])
            self.forget(job)
        return job

    def close(self) -> None:
        for job in list(self._jobs):
            job.cancel()
        self._worker.shutdown()


def visitor_of(request: Any) -> tuple[str, str | None]:
    """Visitor of a request, and the host if that is remote; None: here or behind a proxy here."""
    if not request.session_hash:
        raise InputError("this request belongs to no page; open the demo in a browser")
    return str(request.session_hash), _host(request)


def runs(queue: Any) -> list[Any]:
    """Events of Gradio's queue that are runs, at work or waiting."""
    waiting = queue.event_queue_per_concurrency_id.get(RUNS)
    events = list(waiting.queue) if waiting else []
    return events + [
        e for jobs in queue.active_jobs for e in jobs or () if e.concurrency_id == RUNS
    ]


def seconds_before(queue: Any) -> float | None:
    """About how long the runs of Gradio's queue go on, by the mean of earlier ones on their tabs.

    None: on one of the tabs none has ended yet.
    """
    means, events = queue.process_time_per_fn, runs(queue)
    if any(event.fn not in means for event in events):
        return None
    at_work = queue.event_queue_per_concurrency_id[RUNS].start_times_per_fn if events else {}
    begun = [(means[fn].avg_time, time.time() - at) for fn, ats in at_work.items() for at in ats]
    return sum(means[e.fn].avg_time for e in events) - sum(min(pair) for pair in begun)


def _host(request: Any) -> str | None:
    host = getattr(request.client, "host", None)
    return None if host is None or is_loopback(host) else str(host)
