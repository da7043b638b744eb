"""Units done by actors on a Ray cluster: one per GPU, or some on CPUs.

The driver hands out units, and alone writes what comes back, so that nothing is lost or counted
twice whoever dies. Every node needs the same versions of mmspec and torch, and the files of model
and judges under the same paths. On processors of one kind results are the local ones, bit by bit.
"""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ... import __version__
from ...errors import InputError, absent
from .job import Job, Outcome, Unit

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError as error:
    raise absent("--executor ray needs Ray", "ray") from error

WORKERS = 2  # on CPUs, where the user doesn't say
RESTARTS = 2  # times that a unit is done again after its worker died; and of workers in a row
REACH_SECONDS = 10  # for an answer from an address
START_SECONDS = 300  # for a worker's start


class Hand:
    """An actor: a worker in a process of its own, somewhere on the cluster."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def start(self, wanted: dict[str, str]) -> None:
        """Get ready for units.

        Raises:
            InputError: the versions here are not those that are wanted.
        """
        found = versions()
        if found != wanted:
            here, there = (", ".join(map(" ".join, v.items())) for v in (found, wanted))
            raise InputError(f"it has {here} and this process {there}; install the same everywhere")
        from .executor import Worker

        # Ray makes the process for one thread; the worker sets the job's number, on which the
        # rounding of sums depends
        self.worker = Worker(self.job)

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole."""
        return self.worker.run(unit)


class RayExecutor:
    """Hands units to actors as they become free.

    Args:
        job: what the actors have to know.
        address: of a cluster that runs ("host:port", "ray://host:port" or "auto"); None: the one
            that this process is connected to, else one of its own on this machine.
        workers: actors; None: one per GPU, or on CPUs two. With a device map, the GPUs of each node
            are divided among its actors, and one per node is the default.

    Raises:
        InputError: Ray is not installed, the address doesn't answer, or the cluster is too small.
    """

    def __init__(self, job: Job, address: str | None = None, workers: int | None = None) -> None:
        self._idle: list[Any] = []
        self._starting: dict[Any, Any] = {}  # actors by what they will answer
        self._lost = 0  # actors in a row that died before they were ready
        own = address is None and not ray.is_initialized()
        self._disconnect = not ray.is_initialized()
        try:
            connect(address, workers or WORKERS)
            cpus = 1 if own else job.threads  # our own cluster has one "CPU" for every actor
            self._count, self._share = shares(job, workers, cpus)
        except BaseException:
            self.close()
            raise
        self._job = _anywhere(job, on_gpu="num_gpus" in self._share)

    def run(self, units: Iterable[Unit], alone: bool = False) -> Iterator[Outcome]:
        """Do units on the actors, see `Executor.run`.

        Raises:
            InputError: a worker can't start or is of another version, or a unit kills every worker
                that it is given to. Whatever a worker raises is raised here.
        """
        todo, deaths = deque(units), Counter[Unit]()
        running: dict[Any, tuple[Any, Unit]] = {}
        try:
            while todo or running:
                self._fill(busy=len(running))
                while todo and self._idle and not (alone and (running or self._starting)):
                    actor, unit = self._idle.pop(), todo.popleft()
                    running[actor.run.remote(unit)] = actor, unit
                # a unit may take as long as it likes, a start may not
                patience = None if running else START_SECONDS
                ready, _ = ray.wait([*running, *self._starting], timeout=patience)
                if not ready:
                    self._give_up()
                    continue
                (answer,) = ready
                if answer in self._starting:
                    self._welcome(answer)
                    continue
                actor, unit = running.pop(answer)
                try:
                    outcome = ray.get(answer)
                except RayTaskError as error:
                    self._idle.append(actor)
                    raise (error.cause or error) from error
                except RayError as error:  # the process, its node or the way there is gone
                    ray.kill(actor)
                    deaths[unit] += 1
                    if deaths[unit] > RESTARTS:
                        raise InputError(
                            f"unit {unit.key} ended {deaths[unit]} Ray workers, the last one "
                            f"with: {_lines(error)[0]} Is its memory enough?"
                        ) from error
                    todo.appendleft(unit)
                    continue
                self._idle.append(actor)  # the next to be used: `alone` stays with one
                yield outcome
        finally:
            for actor, _ in running.values():
                ray.kill(actor)

    def close(self) -> None:
        """End the actors, and the connection, with the cluster if it was started here."""
        if ray.is_initialized():  # else Ray would start a cluster to kill them on
            for actor in (*self._idle, *self._starting.values()):
                ray.kill(actor)
        self._idle.clear()
        self._starting.clear()
        if self._disconnect:
            ray.shutdown()

    def _fill(self, busy: int) -> None:
        """Start actors for those that are missing."""
        while busy + len(self._idle) + len(self._starting) < self._count:
            actor = ray.remote(Hand).options(max_restarts=0, **self._share).remote(self._job)
            self._starting[actor.start.remote(versions())] = actor

    def _give_up(self) -> None:
        """Go on without the actors that don't start: their node is lost or in use."""
        for actor in self._starting.values():
            ray.kill(actor)
        self._count -= len(self._starting)
        self._starting.clear()
        if not self._count:
            raise InputError(
                f"no Ray worker started within {START_SECONDS} s: the cluster is in use, or lost "
                "the nodes that had room"
            )

    def _welcome(self, answer: Any) -> None:
        """An actor that started, or failed to, joins the idle ones, or doesn't."""
        actor = self._starting.pop(answer)
        try:
            ray.get(answer)
        except RayError as error:
            ray.kill(actor)
            self._lost += 1
            if isinstance(error, RayTaskError):
                reason = _lines(error.cause or error)[0]
            elif self._lost > RESTARTS:
                reason = _lines(error)[-1]  # the last of the traceback that Ray quotes
            else:
                return
            raise InputError(f"a Ray worker can't start: {reason}") from error
        self._lost = 0
        self._idle.insert(0, actor)


def versions() -> dict[str, str]:
    """Versions that must be the same on all nodes for equal results."""
    return {"mmspec": __version__, "torch": version("torch")}


def connect(address: str | None, workers: int) -> None:
    """Connect this process to a cluster, or start one, unless it is connected.

    Args:
        workers: for which a cluster that is started here has room.

    Raises:
        InputError: no cluster answers at the address, or this process is connected to another.
    """
    if ray.is_initialized():
        known = ray.get_runtime_context().gcs_address
        if address not in (None, "auto", known):
            raise InputError(f"this process is connected to the Ray cluster at {known} already")
        return
    quiet: dict[str, Any] = dict(log_to_driver=False, logging_level=logging.ERROR)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    if address is None:
        ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
        return
    os.environ.setdefault("RAY_gcs_server_port_wait_time_s", "1")  # one attempt, not minutes
    try:
        if address != "auto":
            place = urlsplit(address if "//" in address else f"//{address}")
            socket.create_connection((place.hostname or "", place.port or 0), REACH_SECONDS).close()
        ray.init(address=address, **quiet)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        raise InputError(
            f"no Ray cluster answers at {address!r} (host:port, ray://host:port or auto), or it "
            f"wants a token (RAY_AUTH_MODE, RAY_AUTH_TOKEN): {_lines(error)[0]}"
        ) from error


def shares(job: Job, workers: int | None, cpus: int) -> tuple[int, dict[str, int]]:
    """Number of actors, and the share of the cluster that each takes.

    Args:
        cpus: that an actor without a GPU takes.

    Raises:
        InputError: there is no room for them.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    gpus = [int(node["GPU"]) for node in nodes if node.get("GPU", 0) >= 1]
    if not gpus:
        if job.device.startswith("cuda"):
            raise InputError("no node of the Ray cluster has a GPU; choose --device cpu")
        count, share = workers or WORKERS, {"num_cpus": cpus}
        room = sum(int(node.get("CPU", 0)) // cpus for node in nodes)
        what = f"of {cpus} CPU threads; ask for fewer --workers or a smaller OMP_NUM_THREADS"
    else:
        count, each = workers or sum(gpus), 1
        if job.device_map is not None:
            count = workers or len(gpus)
            each = max(1, min(gpus) // ceil(count / len(gpus)))
        share = {"num_gpus": each, "num_cpus": 0}
        room = sum(many // each for many in gpus)
        what = f"of {each} GPU; ask for fewer --workers"
    if count > room:
        raise InputError(f"the Ray cluster has no room for {count} workers, but for {room} {what}")
    return count, share


def _anywhere(job: Job, on_gpu: bool) -> Job:
    """The job as an actor needs it, whose folder is another."""

    def absolute(path: str) -> str:
        return str(Path(path).resolve()) if Path(path).exists() else path

    return replace(
        job,
        model=job.model and absolute(job.model),
        files={name: absolute(path) for name, path in job.files.items()},
        device="cuda" if on_gpu else job.device,
    )


def _lines(error: BaseException) -> list[str]:
    return str(error).strip().splitlines() or [type(error).__name__]
