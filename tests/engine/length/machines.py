"""Machines by a table of costs, whose clock is the guard's; batches that end row by row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.lengths import rounds
from mmspec.engine.laws import OneHot
from mmspec.engine.length.constant import ConstantLength
from mmspec.engine.length.guard import Guard, GuardedLength
from mmspec.engine.length.ledger import Ledger

# seconds of a round: (fixed, of every token judged, of a call of the drafter, of every row of it)
SHAPES = {
    "image: windows, a busy processor": (1.0, 0.06, 0.0, 0.0),
    "image: windows, an idle card": (1.0, 0.002, 0.0, 0.0),
    "vlm: a draft model": (1.0, 0.05, 0.15, 0.01),
    "vlm: a head": (1.0, 0.02, 0.03, 0.002),
    "text: every token costs": (0.1, 0.5, 0.05, 0.05),
    "continuous: a small head": (0.2, 0.1, 0.01, 0.01),
    "video: blocks": (2.0, 4.0, 0.5, 1.0),
}


def known_plain(rows: Iterable[int]) -> Ledger:
    """A ledger that has seen drafts, and plain rounds of a second with each of these rows."""
    ledger = Ledger(begun={0})
    for n in (*rows, *rows):
        ledger.plain.learn(n, 1.0)
    return ledger


class Machine(rounds.Machine):
    """Writes samples under a guard; row b's tokens stand with chance `stands[b]`.

    Args:
        shape: of its costs, see `SHAPES`.
        stands: chances; rows take them in turn.
        noise: deviation of the logarithm of a round's seconds.
    """

    def __init__(self, shape, monkeypatch, stands=(0.8,), noise=0.0, seed=0):
        super().__init__(rounds.RoundCost(*shape), noise, np.random.default_rng(seed))
        self.stands = stands
        monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: self.now)

    def runs(self, ledger: Ledger, depth: int, lengths: list[int], arm: int | None = 0, **how):
        """A call for samples of such lengths, drafts of `depth`; returns (drafted, rounds)."""
        guard = Guard(ledger, arm, **how)
        told = self.plays(guard, depth, lengths)
        guard.close(len(lengths), lengths)
        return told

    def plays(self, guard: Guard | None, depth: int, lengths: list[int]):
        """The same under a guard, which hears nothing of its end; None: under none."""
        self.now += 0.02  # a prompt
        policy, total = ConstantLength(depth), rounds.Played()
        policy = policy if guard is None else GuardedLength(policy, guard)
        rounds.play(self, policy, lengths, self._kept, lambda *_: OneHot(), total)
        return total.drafted, total.rounds

    def _kept(self, row: int, at: int, depth: int) -> int:
        stands = self.rng.random(depth) < self.stands[row % len(self.stands)]
        return int(stands.argmin()) if not stands.all() else depth

    def plain(self, lengths: list[int]) -> float:
        """Seconds of plain decoding, without noise."""
        steps = range(max(lengths))
        return sum(self.cost.seconds(sum(n > step for n in lengths), 0) for step in steps)
