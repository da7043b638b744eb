"""Stopping of a training: signals are heard between two steps, and recipes keep what they know."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

_ENDING = (signal.SIGINT, signal.SIGTERM)


@runtime_checkable
class Stateful(Protocol):
    """Recipe that knows more than its weights tell, which a checkpoint keeps."""

    def state(self) -> dict[str, Any]:
        """Tell what a run that goes on has to know: numbers, tensors, and what holds them."""

    def resume(self, state: dict[str, Any]) -> None:
        """Go on from a `state`; empty: the checkpoint has none."""


class Stop:
    """Signal that a run is to end, once one has come."""

    number: int | None = None

    def end(self) -> None:
        """End the run as the signal would have; go on where none has come."""
        if self.number == signal.SIGINT:
            raise KeyboardInterrupt
        if self.number is not None:
            raise SystemExit(128 + self.number)


@contextmanager
def heard(here: bool = True) -> Iterator[Stop]:
    """Listen for Ctrl-C and SIGTERM; a second one ends the process at once, as usual.

    Args:
        here: False where nothing is to change, as in one of several processes, which wait for each
            other in the middle of a step. Signals that are ignored stay so, and outside of the
            main thread none are heard.
    """
    stop, before = Stop(), dict[int, Any]()

    def asked(number: int, _: object) -> None:
        stop.number = number
        signal.signal(number, before[number])

    if here and threading.current_thread() is threading.main_thread():
        for number in _ENDING:
            if (found := signal.getsignal(number)) not in (signal.SIG_IGN, None):
                before[number] = found
                signal.signal(number, asked)
    try:
        yield stop
    finally:
        for ending, usual in before.items():
            signal.signal(ending, usual)
