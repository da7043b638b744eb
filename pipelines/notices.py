"""Warnings of a pipeline about speculation that does not pay, once a method."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from ..engine.stats import SpecStats

logger = logging.getLogger(__name__)
FEWEST = 8  # units of an output (tokens, steps, blocks): a shorter one tells nothing
_timed_apart: ContextVar[bool] = ContextVar("timed_apart", default=False)


@contextmanager
def timed_apart() -> Iterator[None]:
    """Suppress estimates of what plain decoding would take, while the block runs.

    For comparisons, which time it, and whose tables an estimate could contradict; and for the first
    calls of a process, which are slow whatever they do.
    """
    token = _timed_apart.set(True)
    try:
        yield
    finally:
        _timed_apart.reset(token)


class Notices:
    """Warnings about speculation that did not pay; every method is spoken of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, stats: SpecStats, plain: float, spent: float | None = None) -> None:
        """Warn if speculation took longer than plain decoding would have, or was given up.

        Plain decoding takes `plain` seconds, and this took `spent`; None: those of the loop.
        """
        if stats.fault is not None or stats.method in self._told:
            return
        if spent is None and max(stats.emitted, default=0) < FEWEST:
            return  # of video, whose blocks take long, `spent` is told
        alone, calls = stats.alone, len(stats.rounds)
        spent = stats.loop_seconds if spent is None else spent
        if alone > calls / 2:
            logger.warning(
                "speculation (%s) does not pay here: %d of %d calls fell back to plain decoding",
                stats.method,
                alone,
                calls,
            )
        elif spent > plain and not _timed_apart.get():
            logger.warning(
                "speculation (%s) took %.2f s where plain decoding takes about %.2f s here",
                stats.method,
                spent,
                plain,
            )
        else:
            return
        self._told.add(stats.method)
