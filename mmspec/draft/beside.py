"""Places beside the target where a part of a drafter works: a thread, or a process of its own."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import weakref
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, Protocol

import torch

from .side_thread import SideThread

Place = Literal["process", "thread", "here"]
PATIENCE = 120.0  # seconds after which a process that says nothing is given up


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
        place: None: a thread with a stream of its own on a GPU, a process on a processor that has
            a second core, and elsewhere "here", between the target's calls.
    """
    if place is None:
        able = hasattr(os, "fork") and torch.get_num_threads() > 1
        place = "thread" if device.type == "cuda" else "process" if able else "here"
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
        self._process = fork.Process(
            target=_serve, args=(worker, end, torch.is_inference_mode_enabled()), daemon=True
        )
        self._process.start()
        end.close()
        threads = torch.get_num_threads()
        self.close = weakref.finalize(self, _stop, self._pipe, self._process, threads)
        torch.set_num_threads(max(1, threads - 1))

    def begin(self, method: str, *arguments: Any) -> Callable[[], Any]:
        self._pipe.send_bytes(pickle.dumps((method, arguments)))
        return self._result

    def _result(self) -> Any:
        if not self._pipe.poll(PATIENCE):
            raise RuntimeError(f"the process beside has said nothing for {PATIENCE:.0f} seconds")
        try:
            failed, made = pickle.loads(self._pipe.recv_bytes())
        except EOFError:
            raise RuntimeError("the process beside is gone") from None
        if failed:
            raise RuntimeError(made)
        return made


def _serve(worker: object, pipe: Connection, inference: bool) -> None:
    """Work in the forked process, until the caller closes the pipe."""
    torch.set_num_threads(1)  # threads of the caller's did not come along
    with torch.inference_mode(inference):
        while True:
            try:
                method, arguments = pickle.loads(pipe.recv_bytes())
            except EOFError:
                return
            try:
                answer = False, getattr(worker, method)(*arguments)
            except Exception as error:
                answer = True, f"{type(error).__name__}: {error}"
            pipe.send_bytes(pickle.dumps(answer))


def _stop(pipe: Connection, process: BaseProcess, threads: int) -> None:
    pipe.close()
    process.terminate()
    process.join()
    torch.set_num_threads(threads)
