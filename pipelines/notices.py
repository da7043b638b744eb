"""What a pipeline tells its user about the speculation it did, once a method."""

from __future__ import annotations

import logging

from ..engine.stats import SpecStats

logger = logging.getLogger(__name__)


class Notices:
    """Warnings about speculation that did not pay; every method is spoken of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, stats: SpecStats, plain_call: float) -> None:
        """Say so when speculation took longer than plain decoding would have, or was given up.

        Args:
            stats: of a generation that speculated.
            plain_call: seconds of a call of the target with one token a row.
        """
        if not stats.emitted or stats.fault is not None or stats.method in self._told:
            return
        alone, calls = stats.alone, len(stats.rounds)
        plain = max(stats.emitted) * plain_call
        if alone > calls / 2:
            logger.warning(
                "speculation (%s) does not pay here: %d of %d calls fell back to plain decoding",
                stats.method,
                alone,
                calls,
            )
        elif stats.loop_seconds > plain:
            logger.warning(
                "speculation (%s) took %.2f s where plain decoding takes about %.2f s here",
                stats.method,
                stats.loop_seconds,
                plain,
            )
        else:
            return
        self._told.add(stats.method)
