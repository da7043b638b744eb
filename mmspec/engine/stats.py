"""Counters of a generation, in the words of the field."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import Any

from .draft import Draft, Verdict
from .laws import Contract

_ROWS = ("calls", "drafted", "accepted", "emitted", "target_tokens")  # a number a row

# of a field whose entry i counts draft position, or step, i: merging adds it place by place
BY_POSITION = {"by_position": True}


class _Phase:
    """Four a round: a class of its own costs less than a generator would."""

    __slots__ = ("_name", "_seconds", "_started")

    def __init__(self, seconds: dict[str, float], name: str) -> None:
        self._seconds, self._name = seconds, name

    def __enter__(self) -> None:
        self._started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        spent = time.perf_counter() - self._started
        self._seconds[self._name] = self._seconds.get(self._name, 0.0) + spent


@dataclass
class SpecStats:
    """Counters and times of a batch of generations.

    A modality that counts more than tokens has a subclass beside its pipeline, which declares the
    fields that it adds: they are merged, logged and read by their types.

    Attributes:
        method, contract: what ran and what it promises.
        calls: verify calls of the target that each row took part in (its NFE); prefill is apart.
        drafted, accepted, emitted: tokens per row; emitted ones include the recovered or bonus
            token of every call. A guess of that token (`engine.accept.guess`) is drafted, too.
        judged_at, accepted_at: per draft position, how often it was reached, how often it stood.
        target_tokens: tokens that the target processed, drafts and roots, per row; no guesses.
        rounds: tokens less one that every call read in a row, filling included.
        alone: calls for a round without a draft: plain decoding.
        scored: calls of the phase "target", drafts judged or none.
        seconds: wall-clock per phase: prefill, draft, target, verify, resample (local rules),
            update, the pipeline's own.
        pruned: layers times nodes that drafts pruned by the target ran, and those that they would
            have run whole, see `Pruning`; empty: none were pruned.
        own_drafts: passes of the target that its own drafting amounts to, by layers run.
        latency: seconds from when a row began until it had its first token, and until it had its
            last, per row; 0 where there is none.
        fault: why the drafter was given up in the middle; None: it was not.
        inner: counters of the rounds in which a drafter drafted for the drafter; None: none did.
    """

    method: str = "plain"
    contract: Contract = "exact"
    calls: list[int] = field(default_factory=list)
    drafted: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    emitted: list[int] = field(default_factory=list)
    target_tokens: list[int] = field(default_factory=list)
    judged_at: list[int] = field(default_factory=list, metadata=BY_POSITION)
    accepted_at: list[int] = field(default_factory=list, metadata=BY_POSITION)
    rounds: list[int] = field(default_factory=list)
    alone: int = 0
    scored: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    own_drafts: float = 0.0
    pruned: list[int] = field(default_factory=list, metadata=BY_POSITION)
    latency: list[tuple[float, float]] = field(default_factory=list)
    fault: str | None = None
    inner: SpecStats | None = None

    def start(self, rows: int) -> None:
        """Zero the counters of `rows` rows."""
        for name in _ROWS:
            setattr(self, name, [0] * rows)
        self.latency = [(0.0, 0.0)] * rows
        self.judged_at, self.accepted_at, self.rounds = [], [], []
        self.alone = self.scored = 0

    def observe(
        self,
        width: int,
        nodes: list[int],
        reach: list[int],
        accepted: list[int],
        counts: list[int],
        calls: int = 1,
        reread_tokens: Sequence[int] = (),
        samples: Sequence[int] | None = None,
        guessed: Sequence[int] = (),
    ) -> None:
        """Count one round; a row with count 0 took no part in it.

        Args:
            width: nodes that the target scored in every row, filling included.
            nodes, reach: drafted per row, and how many tokens ahead that went.
            accepted, counts: kept and emitted tokens per row.
            calls: of the target; 0 if nobody scored the draft.
            reread_tokens: committed tokens that those calls read once more, per row.
            samples: in the rows; None: row b holds sample b.
            guessed: what became of a guess that was judged with the draft, per row, see `Verdict`.
        """
        most = max(reread_tokens, default=0)
        if calls:
            self.rounds += [most - 1, width] if calls > 1 else [width + most]
            self.alone += not (width or any(guessed))
            self.scored += calls
        grow = max(reach) + any(guessed) - len(self.judged_at)
        if grow > 0:
            self.judged_at += [0] * grow
            self.accepted_at += [0] * grow
        samples = range(len(counts)) if samples is None else samples
        again = reread_tokens or [0] * len(counts)
        guessed = guessed or [0] * len(counts)
        rows = zip(samples, nodes, reach, accepted, counts, again, guessed, strict=True)
        for sample, n, depth, kept, count, read, guess in rows:
            if count == 0:
                continue
            depth, kept = depth + abs(guess), kept + (guess > 0)
            self.calls[sample] += calls
            self.drafted[sample] += n + abs(guess)
            self.accepted[sample] += kept
            self.emitted[sample] += count
            self.target_tokens[sample] += (n + 1 if calls else 0) + read
            for position in range(min(count, depth)):
                self.judged_at[position] += 1
            for position in range(min(kept, depth)):  # of a set that is no prefix none
                self.accepted_at[position] += 1

    def observe_calls(
        self,
        draft: Draft,
        verdict: Verdict,
        counts: Sequence[int],
        samples: Sequence[int] | None = None,
    ) -> None:
        """Count a round's calls of the target beside the one that scored the draft.

        `counts` and `samples` are those of `observe`: rows that are over took no part in it.
        """
        samples = range(len(self.calls)) if samples is None else samples
        for sample, calls, read in zip(samples, verdict.calls, verdict.target_tokens, strict=False):
            self.calls[sample] += calls
            self.target_tokens[sample] += read
        most = max(verdict.calls, default=0)
        if most:
            self.rounds += [max(1, round(max(verdict.target_tokens) / most)) - 1] * most
        if draft.calls:
            for sample, count in zip(samples, counts, strict=True):
                self.calls[sample] += draft.calls * (count > 0)
                self.target_tokens[sample] += draft.read * (count > 0)
            self.rounds += [max(1, round(draft.read / draft.calls)) - 1] * draft.calls

    def merged(self, others: list[SpecStats]) -> SpecStats:
        """Add the counters of other generations by the same method to these."""
        total = type(self)(self.method, self.contract)
        for stats in (self, *others):
            total._add(stats)
        return total

    def _add(self, other: SpecStats) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            if "by_position" in f.metadata:
                mine = [sum(pair) for pair in zip_longest(mine, theirs, fillvalue=0)]
            elif isinstance(mine, dict):
                mine |= {name: mine.get(name, 0.0) + value for name, value in theirs.items()}
            elif isinstance(theirs, SpecStats):
                mine = (mine or SpecStats()).merged([theirs])
            elif isinstance(mine, str | SpecStats | None):
                mine = mine or theirs
            else:  # rows behind rows, or sums
                mine += theirs
            setattr(self, f.name, mine)

    def as_one(self) -> SpecStats:
        """The same counters, of rows that were parts of one output."""
        total = self.merged([])
        for name in _ROWS:
            setattr(total, name, [sum(getattr(self, name))])
        return total

    def phase(self, name: str) -> _Phase:
        """A context manager that adds the time of its block to `seconds[name]`."""
        return _Phase(self.seconds, name)

    @property
    def samples(self) -> int:
        """Outputs that are counted."""
        return len(self.calls)

    @property
    def phases(self) -> dict[str, float]:
        """Seconds by what they went to, as reports show them."""
        return dict(sorted(self.seconds.items()))

    def decode_seconds(self, whole: float) -> float:
        """Seconds that speed is measured by, of a call's `whole`: the loop's."""
        return self.loop_seconds

    @property
    def loop_seconds(self) -> float:
        """Seconds in the loop, without prefill and what the pipeline does around it."""
        phases = ("draft", "target", "verify", "resample", "update")
        return sum(self.seconds.get(p, 0.0) for p in phases)

    @property
    def nfe(self) -> float:
        """Mean verify calls of the target per row."""
        return sum(self.calls) / max(1, len(self.calls))

    @property
    def mean_acceptance_length(self) -> float:
        """Mean tokens emitted per target call, the recovered or bonus token included.

        0 where the target was not called.
        """
        calls = sum(self.calls)
        return sum(self.emitted) / calls if calls else 0.0

    @property
    def spared(self) -> float:
        """Share of layers times nodes that pruned drafts did not run; 0 if none were pruned."""
        run, whole = self.pruned or (0, 0)
        return 1 - run / whole if whole else 0.0

    @property
    def acceptance_by_position(self) -> list[float]:
        """Rate at which draft position i stood, given that those before it did.

        It ends with the last position that was ever judged: behind it there is no rate.
        """
        pairs = zip(self.accepted_at, self.judged_at, strict=True)
        return [kept / judged for kept, judged in pairs if judged]

    def of_sample(self, row: int) -> dict[str, Any]:
        """Counters of an output for its line of the log."""
        return {"nfe": self.calls[row], "emitted": self.emitted[row]}

    def per_sample(self, shared: bool = False) -> dict[str, float]:
        """Means per output, by the names that reports and `stats.json` have for them.

        Args:
            shared: outputs were made in batches, whose calls are no single output's.
        """
        read = sum(self.target_tokens) / max(1, len(self.calls))
        return {"nfe_per_sample": self.nfe, "target_tokens_per_sample": read}

    def as_dict(self) -> dict[str, Any]:
        """Plain numbers for `stats.json`."""
        within: dict[str, Any] = {}
        if self.inner is not None:
            within["inner_acceptance_length"] = self.inner.mean_acceptance_length
            within["inner_acceptance_by_position"] = self.inner.acceptance_by_position
        if self.pruned:
            within["spared"] = self.spared
        return {
            "method": self.method,
            "contract": self.contract,
            **self.per_sample(shared=True),
            "mean_acceptance_length": self.mean_acceptance_length,
            "acceptance_by_position": self.acceptance_by_position,
            **within,
            "drafted": sum(self.drafted),
            "accepted": sum(self.accepted),
            "emitted": sum(self.emitted),
            "fault": self.fault,
            "seconds": self.seconds,
        }
