"""How many drafts have to stand for a wished speed-up, by what blocks are seen to take."""

from __future__ import annotations

import logging
import statistics
from collections import deque
from collections.abc import Mapping

logger = logging.getLogger(__name__)
LATEST = 9  # rounds whose seconds are remembered
NEAR = 0.95  # of the wish: what is less is said


class Pace:
    """The share of the drafts that is to stand from here on.

    With m seconds for a block that the target makes behind one of its own, M behind drafts that it
    has to read first, d for decoding it and t for drafting one and judging it, plain generation
    takes m + d a block, and a draft that falls M + d beside its own t + d. Of k blocks to come, a
    share f has to fall if what was spent until now and k · (t + d + f · (M + d)) are together
    plain's seconds for all N blocks, over the wish. Every round it is found anew, so that blocks
    which take longer or stand by chance are made up for. Seconds are medians over the last rounds,
    and plain's those of their time.

    Args:
        wish: seconds of plain generation over those of this one; None: there is none, and what is
            wanted are the seconds.
        blocks: N, of all clips together.
        share: what it is until both models were seen.
        fixed: seconds that both ways take, such as for reading the prompt.
    """

    def __init__(self, wish: float | None, blocks: int, share: float, fixed: float = 0.0) -> None:
        self.wish, self.blocks, self.share, self.fixed = wish, blocks, share, fixed
        self._done = self._unpriced = 0
        self._spent = self._plain = 0.0  # and what plain generation would have
        self._before: dict[str, float] = {}
        self._make, self._show, self._try = (deque[float](maxlen=LATEST) for _ in range(3))
        self._behind = deque[float](maxlen=LATEST)

    def observe(
        self,
        parts: Mapping[str, float],
        tried: int,
        made: int,
        emitted: int,
        surplus: float = 0.0,
    ) -> float:
        """Look at a round; returns the share.

        Args:
            parts: seconds by part up to its end, see `VideoStats`.
            tried: blocks that were drafted and judged in it.
            made: blocks that the target made.
            emitted: blocks that joined clips.
            surplus: the part of the target's work for which plain generation has no need: reading
                drafts that stood before.
        """
        took = {name: spent - self._before.get(name, 0.0) for name, spent in parts.items()}
        self._before, self._spent = dict(parts), sum(parts.values())
        self._done, self._unpriced = self._done + emitted, self._unpriced + emitted
        if made:
            self._behind.append(took.get("regenerate", 0.0) / made)
            self._make.append((1 - surplus) * self._behind[-1])
        if tried:
            self._try.append((took.get("draft", 0.0) + took.get("reward", 0.0)) / tried)
        if tried + made:
            self._show.append(took.get("decode", 0.0) / (tried + made))
        if self._make:
            show = statistics.median(self._show)
            plain = statistics.median(self._make) + show
            self._plain, self._unpriced = self._plain + self._unpriced * plain, 0
            left = self.blocks - self._done
            if self.wish is not None and left > 0 and self._try and plain > 0:
                budget = (self.fixed + self._plain + left * plain) / self.wish - self.fixed
                each, fall = (statistics.median(of) + show for of in (self._try, self._behind))
                falls = ((budget - self._spent) / left - each) / fall
                self.share = min(1.0, max(0.0, 1 - falls))
        return self.share

    @property
    def plain(self) -> float | None:
        """Seconds of plain generation of what was emitted; None: the target made no block."""
        return self.fixed + self._plain if self._make else None

    @property
    def spent(self) -> float:
        """Seconds that this generation took."""
        return self.fixed + self._spent

    @property
    def speedup(self) -> float | None:
        """What was reached until now; None: the target made no block, or nothing took time."""
        plain = self.plain
        return None if plain is None or not self._spent else plain / self.spent

    def close(self) -> None:
        """Say so if the wish was missed, by clips that were not stopped."""
        found = self.speedup
        if self.wish is None or found is None or self._done < self.blocks:
            return
        if found < NEAR * self.wish:
            logger.warning(
                "the wished speed-up of %.2f was missed: %.2f, with %.0f %% of the "
                "drafts to stand at the end",
                self.wish,
                found,
                100 * self.share,
            )
