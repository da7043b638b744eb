"""What a pipeline tells its user about the speculation it did, once a method."""

from __future__ import annotations

import logging

from ..engine.stats import SpecStats

logger = logging.getLogger(__name__)


class Notices:
    """Warnings about speculation that did not pay; every method is spoken of once."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def check(self, stats: SpecStats, plain: float, spent: float | None = None) -> None:
        """Say so when speculation took longer than plain decoding would have, or was given up.

        Args:
            stats: of a generation that speculated, and of which something came out.
            plain: seconds that plain decoding takes for as much.
            spent: seconds that this took; None: those of the loop.
        """
        if stats.fault is not None or stats.method in self._told:
            return
        alone, calls = stats.alone, len(stats.rounds)
        spent = stats.loop_seconds if spent is None else spent
        if alone > calls / 2:
            logger.warning(
                "speculation (%s) does not pay here: %d of %d calls fell back to plain decoding",
                stats.method,
                alone,
                calls,
            )
        elif spent > plain:
            logger.warning(
                "speculation (%s) took %.2f s where plain decoding takes about %.2f s here",
                stats.method,
                spent,
                plain,
            )
        else:
            return
        self._told.add(stats.method)
