"""Backends: who does the work behind the routes. Here, in this process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from .batcher import Batcher, BusyError, Runner
from .jobs import Job, News
from .metrics import RunMetrics
from .requests import ServeLimits

__all__ = ["Backend", "BusyError", "ChatAsked", "LocalBackend", "PictureAsked"]


@dataclass(frozen=True)
class ChatAsked:
    """A conversation to answer, see `VlmPipeline`.

    Attributes:
        seeded: a draw is to be the one of its seed, however it is reached.
    """

    messages: list[dict[str, Any]]
    temperature: float
    top_p: float
    top_k: int
    limit: int | None
    stops: tuple[str, ...]
    seeded: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Conversations of equal keys can be answered together.

        How far a row may still be drafted decides which of its coins are drawn, so drawn answers
        of different lengths do not share a batch; greedy ones may.
        """
        drawn = self.limit if self.temperature else None
        return self.temperature, self.top_p, self.top_k, drawn

    @property
    def free(self) -> bool:
        """True if any draw of the model's law will do, or there is one answer only."""
        return not (self.temperature and self.seeded)


@dataclass(frozen=True)
class PictureAsked:
    """A caption to draw, see `ImagePipeline`.

    Attributes:
        seeded: the picture is to be the one of its seed, however it is reached.
    """

    prompt: str
    sides: tuple[int, int] | None
    guidance_scale: float | None
    seeded: bool = True

    @property
    def key(self) -> tuple[Any, ...]:
        """Captions of equal keys can be drawn together."""
        return self.sides, self.guidance_scale

    @property
    def free(self) -> bool:
        """True if any draw of the model's law will do."""
        return not self.seeded


class Backend(Protocol):
    """Does what requests ask for.

    Attributes:
        models: what each does, "chat" or "picture", by name.
    """

    models: Mapping[str, str]

    async def submit(
        self, model: str, asked: Any, rows: int, seeds: list[int], seconds: float | None = None
    ) -> AsyncGenerator[News, None]:
        """Begin a request; its news end with "usage" or "error". Closing them cancels it.

        It has `seconds`; None: as many as the limits say.

        Raises:
            BusyError: too many wait.
        """

    def answered(self, model: str, code: int, seconds: float, usage: Mapping[str, Any]) -> None:
        """Hear that a request is over, and what it took if it was answered."""

    def refused(self, code: int) -> None:
        """Hear that a request was refused before a model saw it."""

    async def healthy(self) -> bool:
        """False if nothing can be answered any more."""

    async def waiting(self) -> int | None:
        """The number of requests that wait; None: nobody here knows."""

    async def metrics(self) -> bytes:
        """Figures in Prometheus' form."""

    def end(self) -> None:
        """Begin to end: what waits is refused, what runs is interrupted; called from any thread."""


class Heard:
    """News of one request, which any thread may tell; made in the loop that listens."""

    def __init__(self) -> None:
        self._loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[News]()

    def tell(self, news: News) -> None:
        """Add a piece of news."""
        with suppress(RuntimeError):  # the loop is over: nobody listens
            self._loop.call_soon_threadsafe(self._queue.put_nowait, news)

    async def all(self) -> AsyncGenerator[News, None]:
        """The news as they come, up to the last."""
        while True:
            one = await self._queue.get()
            yield one
            if one.kind in ("usage", "error"):
                return


class LocalBackend:
    """Models of this process, behind one `Batcher`."""

    def __init__(
        self,
        runners: Mapping[str, Runner],
        models: Mapping[str, str],
        limits: ServeLimits,
        metrics: RunMetrics,
    ) -> None:
        self.models, self.limits, self._metrics = models, limits, metrics
        self.batcher = Batcher(runners, limits, metrics)

    async def submit(
        self, model: str, asked: Any, rows: int, seeds: list[int], seconds: float | None = None
    ) -> AsyncGenerator[News, None]:
        heard = Heard()
        deadline = time.monotonic() + (self.limits.seconds if seconds is None else seconds)
        job = Job(model, asked, asked.key, rows, seeds, heard.tell, deadline)
        self.batcher.submit(job)

        async def news() -> AsyncGenerator[News, None]:
            try:
                async for one in heard.all():
                    yield one
            finally:
                self.batcher.cancel(job)

        return news()

    def answered(self, model: str, code: int, seconds: float, usage: Mapping[str, Any]) -> None:
        self._metrics.answered(model, code, seconds, usage)

    def refused(self, code: int) -> None:
        self._metrics.refused(code)

    async def healthy(self) -> bool:
        return self.batcher.healthy

    async def waiting(self) -> int:
        return self.batcher.waiting

    async def metrics(self) -> bytes:
        return self._metrics.text()

    def end(self) -> None:
        self.batcher.end()

    def close(self) -> None:
        """End, and wait for it."""
        self.batcher.close()
