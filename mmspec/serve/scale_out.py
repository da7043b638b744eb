"""Scale-out on Ray Serve: replicas of the models, behind this process, which loses no request.

A replica that dies takes its batch along. Another one is asked again: the seeds are the request's,
so the answer is the same, and what a client has of it already is not told twice.
"""

from __future__ import annotations

import asyncio
import logging
import re
import signal
import threading
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

from ..errors import InputError, absent, reason
from .backend import BusyError, ChatAsked, Heard
from .batcher import BROKEN, ENDS
from .jobs import JobError, News
from .loading import KINDS, Offered, check_here, check_names, local_backend
from .metrics import Metrics
from .requests import ServeLimits

try:
    import ray
    from ray import serve
    from ray.exceptions import RayError, RayTaskError
    from ray.serve.exceptions import BackPressureError, RayServeException
except ImportError as error:
    raise absent("several replicas need Ray Serve", "ray") from error

logger = logging.getLogger(__name__)
NAME, MODEL = "mmspec", "model"  # of the application, and of the deployment in it
RESTARTS = 3  # times that a request is asked again
WARNINGS = {"log_level": "WARNING"}  # Serve would tell of every request
_OURS = re.escape(f"{InputError.__module__}.{InputError.__name__}")
LOST = "the replica that answered is gone, and so are those that were asked after it"


class Replica:
    """The models in a process of their own."""

    def __init__(self, offered: Sequence[Offered], limits: ServeLimits) -> None:
        self.backend = local_backend(offered, limits)

    def check_health(self) -> None:
        """Hear from Ray whether the replica still works; one that does not is replaced."""
        if not self.backend.batcher.healthy:
            raise RuntimeError("batches fail one after the other")

    async def news(
        self, model: str, asked: Any, rows: int, seeds: list[int], seconds: float
    ) -> AsyncGenerator[tuple[Any, ...], None]:
        """News of a request that has so many seconds, as plain tuples."""
        try:
            heard = await self.backend.submit(model, asked, rows, seeds, seconds)
        except BusyError:
            yield "busy", 0, None
            return
        async for one in heard:
            yield tuple(one)


class RayBackend:
    """The replicas, as the routes' backend.

    Args:
        models: what each does, by name.
        handle: of the replicas' deployment.
        seconds: of a request.
    """

    def __init__(self, models: Mapping[str, str], handle: Any, seconds: float) -> None:
        self.models, self._handle = models, handle
        self._metrics = Metrics()  # what waits and runs is in Ray's own figures
        self.seconds = seconds
        self._under_way: set[Heard] = set()

    async def submit(
        self, model: str, asked: Any, rows: int, seeds: list[int], seconds: float | None = None
    ) -> AsyncGenerator[News, None]:
        heard = Heard()
        until = time.monotonic() + (self.seconds if seconds is None else seconds)
        if isinstance(asked, ChatAsked):  # asked again, it goes on where it was
            asked = replace(asked, seeded=True)

        async def ask() -> None:
            try:
                async for one in self._news(model, asked, rows, seeds, until):
                    heard.tell(one)
            except Exception:
                logger.exception("the replicas could not be asked")
                heard.tell(News("error", value=BROKEN))

        async def news() -> AsyncGenerator[News, None]:
            self._under_way.add(heard)
            asking = asyncio.create_task(ask())
            try:
                async for one in heard.all():
                    yield one
            finally:
                self._under_way.discard(heard)
                asking.cancel()

        return news()

    async def _news(
        self, model: str, asked: Any, rows: int, seeds: list[int], until: float
    ) -> AsyncGenerator[News, None]:
        """News of a request, which is done again if a replica dies of it."""
        told, arrived, begun = Told(rows), time.monotonic(), False
        for _ in range(1 + RESTARTS):
            left = until - time.monotonic()
            job = model, asked, rows, seeds, left
            stream = self._handle.options(stream=True).news.remote(*job)
            told.again()
            try:
                async for kind, choice, value in stream:
                    if kind == "busy":
                        yield News("error", value=JobError(429, "too many requests wait here"))
                        return
                    value = JobError(*value) if kind == "error" else value
                    for one in told.new(News(kind, choice, value)):
                        if not begun and one.kind in ("text", "picture"):
                            begun = True
                            self._metrics.began(model, time.monotonic() - arrived)
                        yield one
                        if one.kind in ("usage", "error"):
                            return
            except BackPressureError:
                yield News("error", value=JobError(429, "too many requests wait here"))
                return
            except RayServeException:
                yield News("error", value=JobError(503, LOST))
                return
            except RayTaskError:
                logger.exception("a replica failed")
                yield News("error", value=BROKEN)
                return
            except RayError:
                continue  # it died: another one does it again
            finally:
                stream.cancel()
        yield News("error", value=JobError(503, LOST))

    def answered(self, model: str, code: int, seconds: float, usage: Mapping[str, Any]) -> None:
        self._metrics.answered(model, code, seconds, usage)

    def refused(self, code: int) -> None:
        self._metrics.refused(code)

    async def healthy(self) -> bool:
        return True  # Ray looks after the replicas

    async def waiting(self) -> int | None:
        return None  # they wait with the replicas

    async def metrics(self) -> bytes:
        return self._metrics.text()

    def end(self) -> None:
        """Begin to end: requests under way are refused."""
        for heard in [*self._under_way]:
            heard.tell(News("error", value=ENDS))


class Told:
    """Record of what a client has of a request already, when it is done again.

    Args:
        rows: its answers or pictures.
    """

    def __init__(self, rows: int) -> None:
        self.texts, self.over = [""] * rows, set[tuple[str, int]]()
        self.again()

    def again(self) -> None:
        """Begin to hear it anew."""
        self._heard = [""] * len(self.texts)

    def new(self, news: News) -> Iterator[News]:
        """Give what of a piece of news the client does not have."""
        choice = news.choice
        if news.kind == "text":
            self._heard[choice] += news.value
            heard, told = self._heard[choice], self.texts[choice]
            if not heard.startswith(told[: len(heard)]):  # rounding: another processor
                yield News("error", value=JobError(503, LOST))
            elif len(heard) > len(told):
                self.texts[choice] = heard
                yield News("text", choice, heard[len(told) :])
        elif news.kind == "finish" and self._heard[choice] != self.texts[choice]:
            yield News("error", value=JobError(503, LOST))
        elif (news.kind, choice) not in self.over:
            if news.kind in ("picture", "finish"):
                self.over.add((news.kind, choice))
            yield news


def needs(offered: Sequence[Offered]) -> dict[str, float]:
    """Resources of a replica, by Ray's names: a GPU where a model runs on one."""
    gpu = any(one.device.startswith("cuda") for one in offered)
    return {"CPU": 1, **({"GPU": 1} if gpu else {})}


def check_room(offered: Sequence[Offered], least: int, has: Mapping[str, float]) -> None:
    """Raise an `InputError` if a machine has no room for the least replicas: Ray would wait for it.

    Args:
        has: its resources, by Ray's names.
    """
    for name, each in needs(offered).items():
        if least * each > has.get(name, 0):
            raise InputError(
                f"{least} replicas need {least * each:.0f} {name}s, and this machine has "
                f"{has.get(name, 0):.0f}; ask for fewer replicas"
            )


def model_deployment(
    offered: Sequence[Offered], limits: ServeLimits, replicas: tuple[int, int]
) -> Any:
    """The replicas' deployment, still without what it offers.

    Args:
        offered: decides what a replica needs of a machine.
        limits: the rows of a batch are what a replica is to be busy with, and twice as many the
            most that it takes at a time.
        replicas: least and most; between them their number follows the load.
    """
    least, most = replicas
    number: dict[str, Any] = {"num_replicas": least}
    if most > least:
        number = {
            "autoscaling_config": {
                "min_replicas": least,
                "max_replicas": most,
                "target_ongoing_requests": limits.rows,
            }
        }
    return serve.deployment(
        Replica,
        name=MODEL,
        max_ongoing_requests=2 * limits.rows,
        max_queued_requests=limits.waiting,
        logging_config=WARNINGS,
        ray_actor_options={f"num_{name.lower()}s": each for name, each in needs(offered).items()},
        **number,
    )


@contextmanager
def scaled_out(
    offered: Sequence[Offered],
    limits: ServeLimits,
    replicas: tuple[int, int],
    address: str | None = None,
) -> Iterator[RayBackend]:
    """Give what answers requests by replicas, which end with the block.

    Args:
        offered, limits: see `local_backend`.
        replicas: least and most; between them their number follows the load.
        address: of a Ray cluster; None: one on this machine.

    Raises:
        InputError: the replicas can't start.
    """
    check_names(offered)
    if address is None:  # Ray would try three times, with traces
        check_here(offered)
    model = model_deployment(offered, limits, replicas).bind(list(offered), limits)
    try:
        try:
            with _sigterm_kept():
                ray.init(
                    address=address,
                    ignore_reinit_error=True,
                    include_dashboard=False,
                    logging_level=logging.WARNING,
                )
            if address is None:  # others' cluster may grow
                check_room(offered, replicas[0], ray.cluster_resources())
            logging.getLogger("ray.serve").setLevel(logging.WARNING)
            # requests come by this process: Serve's own proxy answers 404 until it knows the routes
            serve.start(proxy_location="Disabled", logging_config=WARNINGS)
            handle = serve.run(model, name=NAME, route_prefix=None, blocking=False)
        except InputError:
            raise
        except Exception as error:  # of a machine that is too busy, Ray raises it as such
            last = _own_error() or str(error).strip().rpartition("\n")[2] or reason(error)
            raise InputError(f"the replicas can't start: {last}") from error
        yield RayBackend({one.name: KINDS[one.kind] for one in offered}, handle, limits.seconds)
    finally:
        _end(address)


def _own_error() -> str | None:
    """The line in which a replica refused to begin; None: none is known here."""
    if not ray.is_initialized():  # Serve would start a cluster to look for itself
        return None
    try:
        deployments = serve.status().applications[NAME].deployments
    except (KeyError, RayError, RayServeException):  # Serve has not come so far
        return None
    told = "\n".join(one.message for one in deployments.values())
    found = re.findall(rf"^{_OURS}: (.*)$", told, re.MULTILINE)
    return found[-1] if found else None


@contextmanager
def _sigterm_kept() -> Iterator[None]:
    """Answer SIGTERM after the block as before it, where Ray starts in the block.

    Ray's handlers end a process with exit code 15, and abort one that takes over three seconds.
    """
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    except SystemExit as error:  # Ray's answer while it starts
        raise SystemExit(128 + signal.SIGTERM) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _end(address: str | None) -> None:
    """End what was started: on a cluster of others this application alone."""
    if not ray.is_initialized():  # Serve would start a cluster to look for itself
        return
    if address is not None:
        with suppress(RayServeException):  # Serve runs on it no more, or did not start
            serve.delete(NAME)
        return
    serve.shutdown()
    ray.shutdown()
