"""Progress of a command on a terminal: a line with the seconds that it takes, and bars.

All of it goes to standard error. Where that is no terminal nothing is shown, and outside of a
command no line.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import (
    AbstractContextManager,
    contextmanager,
    nullcontext,
    redirect_stderr,
    redirect_stdout,
)
from typing import Any, TextIO

EVERY = 0.5  # seconds after which a line is drawn again


class ProgressLine:
    """A line on a terminal that counts seconds until something else is written.

    Args:
        terminal: is written to.
    """

    def __init__(self, terminal: TextIO) -> None:
        self._terminal, self._lock = terminal, threading.RLock()
        self._process = os.getpid()
        self._text, self._since, self._drawn = "", 0.0, 0
        self._over = threading.Event()
        self._clock = threading.Thread(target=self._tick, name="mmspec-progress", daemon=True)
        self._clock.start()

    def say(self, text: str) -> None:
        """Show the text from now on, in place of the one before."""
        with self._held():
            self._text, self._since = text, time.monotonic()
            self._draw()

    def hush(self) -> None:
        """Take the line away."""
        with self._held():
            self._erase()
            self._text = ""

    def close(self) -> None:
        """Take the line away for good."""
        self._over.set()
        self._clock.join()
        self.hush()

    def _tick(self) -> None:
        while not self._over.wait(EVERY):
            with self._held():
                self._draw()

    def _held(self) -> AbstractContextManager[object]:
        """The lock; in a forked worker, where it may be held for ever, none."""
        return self._lock if os.getpid() == self._process else nullcontext()

    def _draw(self) -> None:
        if self._text:
            self._erase()
            shown = f"{self._text} ... {time.monotonic() - self._since:.0f} s"[:79]
            self._drawn = len(shown)
            self._put(shown)

    def _erase(self) -> None:
        if self._drawn:
            self._put(f"\r{' ' * self._drawn}\r")
            self._drawn = 0

    def _put(self, text: str) -> None:
        self._terminal.write(text)
        self._terminal.flush()


class _Before:
    """A stream before whose output a line goes away."""

    def __init__(self, stream: TextIO, line: ProgressLine) -> None:
        self._stream, self._line = stream, line

    def write(self, text: str) -> int:
        self._line.hush()
        return self._stream.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


_line: ProgressLine | None = None
_quiet = False


@contextmanager
def showing(text: str, quiet: bool = False) -> Iterator[None]:
    """A command runs: what it is at is shown from the start, beginning with `text`.

    Args:
        quiet: show nothing, neither lines nor bars.
    """
    global _line, _quiet
    terminal = sys.stderr
    if quiet or terminal is None or not terminal.isatty():
        loud, _quiet = _quiet, quiet
        try:
            yield
        finally:
            _quiet = loud
        return
    line: Any = ProgressLine(terminal)
    out: Any = _Before(sys.stdout, line)
    err: Any = _Before(terminal, line)
    before, _line = _line, line
    try:
        with redirect_stdout(out), redirect_stderr(err):
            say(text)
            yield
    finally:
        _line = before
        line.close()


def shown() -> bool:
    """True while a command shows what it is at."""
    return _line is not None


def no_bars() -> bool | None:
    """`disable` of tqdm for bars of a command: True for none, None for those on a terminal."""
    return True if _quiet else None


def hide_library_bars() -> None:
    """Hide transformers' own bars in this process: a command shows its progress by itself."""
    from transformers.utils import logging

    logging.disable_progress_bar()


def say(text: str) -> None:
    """Show what the running command is at, until it writes something or says what comes next."""
    if _line is not None:
        _line.say(text)


@contextmanager
def bar(what: str, unit: str, total: int | None = None, delay: float = 0.0) -> Iterator[Any]:
    """A bar of tqdm on a terminal.

    Args:
        what: is counted, such as "pictures".
        unit: is counted in.
        total: of the units; None: it is set later.
        delay: seconds without a bar, so that bad input is one line without a bar above it.
    """
    from tqdm import tqdm

    say(what)
    scaled = unit == "B"  # bytes are told in megabytes
    with tqdm(
        desc=what, unit=unit, total=total, delay=delay, disable=no_bars(), unit_scale=scaled
    ) as made:
        yield made
    say("finishing")
