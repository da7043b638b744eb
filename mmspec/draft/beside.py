"""Places beside the target where a part of a drafter works: a thread, or a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

import torch

from ..errors import InputError
from .side_thread import SideThread

Place = Literal["process", "thread", "here"]


class Beside(Protocol):
    """Runs methods of one object, one after the other."""

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        """Begin a method; what is returned waits for its result, or raises what it raised."""

    def close(self) -> None:
        """End the work; what has not begun is not done."""


def beside(worker: object, device: torch.device, place: Place | None) -> Beside:
    """A place for `worker`.

    Args:
        worker: what works there; a process has a copy of it as it is now.
        device: of its network.
        place: None: a thread with a stream of its own on a GPU, on Linux a process where the
            caller has a second core, and elsewhere "here", between the target's calls.

    Raises:
        InputError: a process is asked for, and the network is not on a processor.
    """
    if place is None:
        # forked processes are sound on Linux alone, and those of a pool may have none
        able = sys.platform == "linux" and not multiprocessing.current_process().daemon
        able = able and torch.get_num_threads() > 1 and device.type == "cpu"
        place = "thread" if device.type == "cuda" else "process" if able else "here"
    if place == "process" and device.type != "cpu":
        raise InputError(
            f"draft_beside 'process' is for networks on a processor, and this one is on {device}; "
            "use 'thread'"
        )
    if place == "process":
        return Process(worker)
    return Here(worker) if place == "here" else Thread(worker, device)


class Here:
    """Does everything at once: nothing runs beside anything."""

    def __init__(self, worker: object) -> None:
        self._worker = worker

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        made = getattr(self._worker, method)(*arguments)
        return lambda: made

    def close(self) -> None:
        """Hold nothing."""


class Thread:
    """A thread, on a GPU with a stream of its own."""

    def __init__(self, worker: object, device: torch.device) -> None:
        self._worker, self._side = worker, SideThread(device)

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        return self._side.submit(partial(getattr(self._worker, method), *arguments)).result

    def close(self) -> None:
        self._side.close()


class Process:
    """A forked process with a core of its own; the caller has one thread fewer meanwhile.

    What the worker holds is copied as it is written to, so its weights stay shared.

    Raises:
        RuntimeError: in `begin`'s result, what the worker raised, or that the process is gone.
    """

    def __init__(self, worker: object) -> None:
        fork = multiprocessing.get_context("fork")
        self._pipe, end = fork.Pipe()
        told = worker, end, self._pipe, os.getpid(), torch.is_inference_mode_enabled()
        self._process = fork.Process(target=_serve, args=told, daemon=True)
        self._process.start()
        end.close()
        _FEWER.take()
        self.close = weakref.finalize(self, _stop, self._pipe, self._process)

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        self._pipe.send_bytes(pickle.dumps((method, arguments)))
        return self._result

    def _result(self) -> Any:
        wait([self._pipe, self._process.sentinel])
        try:
            failed, made = pickle.loads(self._pipe.recv_bytes())
        except (EOFError, ConnectionError):
            raise RuntimeError("the process beside is gone") from None
        if failed:
            raise RuntimeError(made)
        return made


class _FewerThreads:
    """Takes a thread from the caller for every process, and gives all back after the last one."""

    def __init__(self) -> None:
        self._lock, self._processes, self._threads = threading.Lock(), 0, 0

    def take(self) -> None:
        with self._lock:
            self._threads = self._threads if self._processes else torch.get_num_threads()
            self._processes += 1
            torch.set_num_threads(max(1, self._threads - self._processes))

    def give_back(self) -> None:
        with self._lock:
            self._processes -= 1
            torch.set_num_threads(max(1, self._threads - self._processes))


_FEWER = _FewerThreads()


def _serve(
    worker: object, pipe: Connection, callers: Connection, parent: int, inference: bool
) -> None:
    """Work in the forked process, until the caller closes the pipe or is gone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's affair
    callers.close()
    torch.set_num_threads(1)  # threads of the caller's did not come along
    with torch.inference_mode(inference):
        while True:
            while not pipe.poll(1.0):  # a later fork may hold the caller's end, too
                if os.getppid() != parent:
                    return
            try:
                method, arguments = pickle.loads(pipe.recv_bytes())
            except (EOFError, ConnectionError):
                return
            try:
                answer = False, getattr(worker, method)(*arguments)
            except Exception as error:
                answer = True, f"{type(error).__name__}: {error}"
            pipe.send_bytes(pickle.dumps(answer))


def _stop(pipe: Connection, process: BaseProcess) -> None:
    pipe.close()
    process.terminate()
    process.join(2)
    if process.is_alive():
        process.kill()
        process.join()
    _FEWER.give_back()
