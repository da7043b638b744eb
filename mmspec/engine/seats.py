"""Continuous batching: as a sample is over, one that waits takes its row (Yu et al. 2022)."""

from __future__ import annotations

import time
from dataclasses import replace

import torch

from .draft import Context
from .protocols import Engine, Seatable, seatable
from .stats import SpecStats


class Seats:
    """Rows of a batch, and the samples that wait for one.

    A sample's coins and drafts are those that it would have in a row of its own from the start, and
    so are lengths that are not chosen for the batch, as `GoodputLength` does: then its output does
    not depend on when it is seated, or behind whom.

    Args:
        engine: whose parts take the samples in.
        context: of the rows, as they begin.
        samples: N; those beyond the rows wait.

    Raises:
        ContractError: samples must wait, and a part of the engine takes in none while others run.
    """

    def __init__(self, engine: Engine, context: Context, samples: int) -> None:
        self._samples, self._next = samples, context.rows
        self._over: dict[int, list[int]] = {}  # tokens of samples that have left their row
        self._began = [time.perf_counter()] * context.rows
        parts = engine.coins, engine.length, engine.target, engine.drafter
        self._parts: list[Seatable] = []
        if samples == context.rows:
            return
        self._parts = [seatable(part) for part in parts]
        context.samples = [*range(context.rows)]
        self._parts[0].seat(context, context.samples)

    def told(self, context: Context, stats: SpecStats) -> None:
        """Note when the rows had their first token and their last one so far."""
        now = time.perf_counter()
        for row, count in enumerate(context.emitted):
            if count:
                sample = row if context.samples is None else context.samples[row]
                last = now - self._began[row]
                first = last if context.base[row] == count else stats.latency[sample][0]
                stats.latency[sample] = first, last

    def fill(self, context: Context, stats: SpecStats) -> None:
        """Let samples that wait take the rows of those that are over."""
        waiting = range(self._next, self._samples)
        rows = [row for row, over in enumerate(context.finished) if over][: len(waiting)]
        if not rows:
            return
        assert context.samples is not None
        for row in rows:
            self._over[context.samples[row]] = context.tokens[row, : context.base[row]].tolist()
            self._began[row] = time.perf_counter()
        context.seat(rows, [*waiting[: len(rows)]])
        self._next += len(rows)
        with stats.phase("prefill"):
            for part in self._parts:
                part.seat(context, rows)

    def whole(self, context: Context) -> Context:
        """The context of all samples, as if each had had a row from the start."""
        if context.samples is None:
            return context
        tokens = dict(self._over)
        for row, sample in enumerate(context.samples):
            tokens[sample] = context.tokens[row, : context.base[row]].tolist()
        base = [len(tokens.get(sample, [])) for sample in range(self._samples)]
        finished = [sample in self._over for sample in range(self._samples)]
        for row, sample in enumerate(context.samples):
            finished[sample] = context.finished[row]
        out = context.tokens.new_zeros(self._samples, max(context.limit, *base))
        for sample, own in tokens.items():
            out[sample, : len(own)] = torch.tensor(own, device=out.device)
        lengths = torch.tensor(base, device=out.device)
        last = out.gather(1, (lengths - 1).clamp_min(0)[:, None])
        return replace(
            context,
            tokens=out,
            lengths=lengths,
            last=last,
            base=base,
            finished=finished,
            samples=None,
            began=None,
        )
