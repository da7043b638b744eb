"""Jobs: requests that wait for their turn, and how news of them reach who asked."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple


class News(NamedTuple):
    """News of a job: what became of it.

    Attributes:
        kind: "text" of a choice, "picture" (PNG) of a choice, "finish" of a choice and why, "usage"
            as the last of all, or "error".
        choice: the number of the answer or the picture.
        value: the text, the bytes, the reason, the counts, or the message.
    """

    kind: Literal["text", "picture", "finish", "usage", "error"]
    choice: int = 0
    value: Any = None


class JobError(NamedTuple):
    """Error of a job, as the client is told it: an HTTP status, and one line."""

    status: int
    message: str


TOO_LONG = JobError(504, "the answer took too long; ask for fewer tokens")


@dataclass
class Job:
    """A request at work.

    Attributes:
        model: its name.
        asked: the request, checked.
        key: jobs of equal keys of one model can run together.
        rows: answers or pictures that it asks for.
        seeds: of its rows.
        tell: called with its news, in the worker's thread.
        deadline: by `time.monotonic`.
        cut: what the client is told if the job ends before its time.
        cancelled: whoever asked is gone, or the server ends.
        told, over: whether it has had news, and its last ones.
        arrived: by `time.monotonic`.
    """

    model: str
    asked: Any
    key: Hashable
    rows: int
    seeds: list[int]
    tell: Callable[[News], None]
    deadline: float
    cut: JobError = TOO_LONG
    cancelled: bool = False
    told: bool = False
    over: bool = False
    arrived: float = field(default_factory=time.monotonic)

    @property
    def late(self) -> bool:
        """True if its time is over."""
        return time.monotonic() > self.deadline

    @property
    def idle(self) -> bool:
        """True if nobody needs it any more."""
        return self.cancelled or self.late

    def say(self, news: News) -> None:
        """Tell who asked; nothing follows the last news."""
        if not self.over:
            self.told, self.over = True, news.kind in ("usage", "error")
            self.tell(news)

    def fail(self, status: int, message: str) -> None:
        """Tell of an error."""
        self.say(News("error", value=JobError(status, message)))
