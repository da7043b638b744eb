"""Machines by a table of costs, whose clock is the guard's; batches that end row by row."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from mmspec.engine.draft import Context, Draft, Verdict
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


class Machine:
    """Takes `seconds(rows, depth)` a round, in which row b's tokens stand with chance `stands[b]`.

    Args:
        shape: of its costs, see `SHAPES`.
        stands: chances; rows take them in turn.
        noise: deviation of the logarithm of a round's seconds.
    """

    def __init__(self, shape, monkeypatch, stands=(0.8,), noise=0.0, seed=0):
        self.shape, self.stands, self.noise = shape, stands, noise
        self.time, self.rng = 0.0, np.random.default_rng(seed)
        self.longest = 0.0  # of its rounds with drafts
        monkeypatch.setattr("mmspec.engine.length.guard.now", lambda: self.time)

    def seconds(self, rows: int, depth: int) -> float:
        fixed, token, call, row = self.shape
        return fixed + token * rows * (1 + depth) + depth * (call + row * rows)

    def runs(self, ledger: Ledger, depth: int, lengths: list[int], arm: int | None = 0, **how):
        """A call for samples of such lengths, drafts of `depth`; returns (drafted, rounds)."""
        guard = Guard(ledger, arm, **how)
        told = self.plays(guard, depth, lengths)
        guard.close(len(lengths), lengths)
        return told

    def plays(self, guard: Guard | None, depth: int, lengths: list[int]):
        """The same under a guard, which hears nothing of its end; None: under none."""
        self.time += 0.01  # a prompt
        policy, rows = ConstantLength(depth), len(lengths)
        policy = policy if guard is None else GuardedLength(policy, guard)
        context = Context.empty(rows, max(lengths))
        policy.start(rows)
        self.time += 0.01
        drafted, rounds = 0, 0
        while not all(context.finished):
            running = [n for n in range(rows) if not context.finished[n]]
            left = [lengths[n] - context.base[n] - 1 for n in range(rows)]
            budget = [max(0, min(b, k)) for b, k in zip(policy.budget(), left, strict=True)]
            kept = [self._kept(n, budget[n]) for n in range(rows)]
            most = max(budget[n] for n in running)
            took = self.seconds(len(running), most) * np.exp(self.noise * self.rng.normal())
            self.time += took
            self.longest = max(self.longest, took if most else 0.0)
            context.emitted = [0] * rows
            for n in running:
                context.emitted[n] = kept[n] + 1
                context.base[n] += kept[n] + 1
                context.finished[n] = context.base[n] >= lengths[n]
            context.reached, context.accepted = budget, kept
            tokens = torch.zeros(rows, most).long()
            draft = Draft(tokens, torch.tensor(budget), OneHot())
            accepted = torch.tensor(kept)
            policy.observe(context, draft, Verdict(accepted, tokens, tokens[:, :1], accepted + 1))
            drafted, rounds = drafted + bool(most), rounds + 1
        return drafted, rounds

    def _kept(self, row: int, depth: int) -> int:
        stands = self.rng.random(depth) < self.stands[row % len(self.stands)]
        return int(stands.argmin()) if not stands.all() else depth

    def plain(self, lengths: list[int]) -> float:
        """Seconds of plain decoding, without noise."""
        steps = range(max(lengths))
        return sum(self.seconds(sum(n > step for n in lengths), 0) for step in steps)
