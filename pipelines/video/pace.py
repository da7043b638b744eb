"""Share of drafts to accept for a target speed-up, from the seconds that blocks take."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping

logger = logging.getLogger(__name__)
LATEST = 9  # rounds whose seconds are remembered
NEAR = 0.95  # of the target speed-up: what is less is said


class Pace:
    """The share of the drafts that is to stand from here on.

    With m seconds for a block that the target makes, d for decoding it, t for drafting one and
    judging it and r for the target's reading of a draft that stands, plain generation takes m + d a
    block, a draft t + d, and r more if it stands, m + d more if it falls. Of k blocks to come, a
    share f has to fall if what was spent until now, r for every draft that is still to be read and
    k · (t + d + (1 − f) · r + f · (m + d)) are together plain's seconds for all N blocks, over the
    target speed-up. Every round it is found anew, so that blocks which take longer or stand by
    chance are made up for. Seconds are medians over the last rounds, and plain's those of their
    time.

    Args:
        target_speedup: seconds of plain generation over those of this one; None: there is none, and
            only the seconds are wanted.
        blocks: N, of all clips together.
        share: what it is until both models were seen.
        fixed: seconds that both ways take, such as for reading the prompt.

    Attributes:
        before: seconds by part up to the end of the last round.
    """

    def __init__(
        self, target_speedup: float | None, blocks: int, share: float, fixed: float = 0.0
    ) -> None:
        self.target_speedup, self.blocks = target_speedup, blocks
        self.share, self.fixed = share, fixed
        self._done = self._unpriced = 0
        self._spent = self._plain = 0.0  # and what plain generation would have
        self.before: dict[str, float] = {}
        made, shown, tried, read = (deque[float](maxlen=LATEST) for _ in range(4))
        self._make, self._show, self._try, self._read = made, shown, tried, read

    def observe(
        self,
        parts: Mapping[str, float],
        tried: int,
        made: int,
        emitted: int,
        read: int = 0,
        unread: int = 0,
    ) -> float:
        """Look at a round; returns the share.

        Args:
            parts: seconds by part up to its end, see `VideoStats`; plain generation has no commit.
            tried, made, emitted: blocks that were drafted and judged in it, that the target made,
                and that joined clips.
            read: drafts that the target read, but for those just before what it made: "commit".
            unread: drafts like these that it has still to read.
        """
        took = {name: spent - self.before.get(name, 0.0) for name, spent in parts.items()}
        self.before, self._spent = dict(parts), sum(parts.values())
        self._done, self._unpriced = self._done + emitted, self._unpriced + emitted
        if made:
            self._make.append(took.get("regenerate", 0.0) / made)
        if read:
            self._read.append(took.get("commit", 0.0) / read)
        if tried:
            self._try.append((took.get("draft", 0.0) + took.get("reward", 0.0)) / tried)
        if tried + made:
            self._show.append(took.get("decode", 0.0) / (tried + made))
        if self._make:
            show = statistics.median(self._show)
            plain = statistics.median(self._make) + show
            self._plain, self._unpriced = self._plain + self._unpriced * plain, 0
            left = self.blocks - self._done
            if self.target_speedup is not None and left > 0 and self._try and plain > 0:
                whole = self.fixed + self._plain + left * plain
                budget = whole / self.target_speedup - self.fixed
                read_one = statistics.median(self._read) if self._read else 0.0
                each = statistics.median(self._try) + show + read_one
                falls = (budget - self._spent - unread * read_one) / left - each
                self.share = min(1.0, max(0.0, 1 - falls / max(plain - read_one, 1e-9)))
        return self.share

    @property
    def plain(self) -> float | None:
        """Seconds of plain generation of what was emitted; None: the target made no block."""
        return self.fixed + self._plain if self._make else None

    @property
    def spent(self) -> float:
        return self.fixed + self._spent

    @property
    def speedup(self) -> float | None:
        """Speed-up until now; None: the target made no block, or nothing took time."""
        plain = self.plain
        return None if plain is None or not self._spent else plain / self.spent

    def close(self) -> None:
        """Say so if the target speed-up was missed, by clips that were not stopped."""
        found = self.speedup
        if self.target_speedup is None or found is None or self._done < self.blocks:
            return
        if found < NEAR * self.target_speedup:
            logger.warning(
                "the target speed-up of %.2f was missed: %.2f, with %.0f %% of the "
                "drafts to stand at the end",
                self.target_speedup,
                found,
                100 * self.share,
            )
