"""Costs of the calls of a round, from rounds that were timed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .rounds import Round

FEWEST = 3  # rounds of a width, or its cost is not known


@dataclass(frozen=True)
class Beside:
    """Costs of working beside each other, of two processes on one machine.

    Attributes:
        target, draft: factors of what their calls take while the other process works.
        ask, wake, receive: seconds that the target's process takes to ask, the drafter's to begin
            once it is asked, and the target's to take in what it made.
        noise: factors of a round's times, by process; a round draws both of one measured round.
            Whoever is late is waited for, so that means alone foretell too little.
    """

    target: float = 1.0
    draft: float = 1.0
    ask: float = 0.0
    wake: float = 0.0
    receive: float = 0.0
    noise: Sequence[tuple[float, float]] = ((1.0, 1.0),)


@dataclass
class Costs:
    """Mean seconds.

    Attributes:
        target: of a call of the target that judges so many tokens.
        after: of what a round does behind it, in neither model.
        draft: of a call of the drafter, by rows of its batch.
        first: that a draft takes besides its calls: the first one reads what was added.
        begin: that a generation's first round takes more than others.
        scale: factor of all that the drafter's device does.
        beside: of two processes; by default they are devices that share nothing.
    """

    target: dict[int, float]
    after: dict[int, float]
    draft: dict[int, float]
    first: float = 0.0
    begin: float = 0.0
    scale: float = 1.0
    beside: Beside = field(default_factory=Beside)

    def call(self, drafted: int) -> float:
        """Seconds of a call for so many drafted tokens, between measured ones linear."""
        return _between(self.target, drafted)

    def rest(self, drafted: int) -> float:
        """Seconds of what comes behind it."""
        return _between(self.after, drafted)

    def drafting(self, tokens: int, rows: int = 1) -> float:
        """Seconds that it takes to draft so many tokens for so many rows."""
        return self.scale * (self.first + tokens * _between(self.draft, rows)) if tokens else 0.0


def _between(table: dict[int, float], at: int) -> float:
    """Value between a table's, linear; beyond its last two as they go on."""
    known = sorted(table)
    if at > known[-1] and len(known) > 1:
        low, high = known[-2:]
        slope = (table[high] - table[low]) / (high - low)
        return table[high] + max(0.0, slope) * (at - high)
    return float(np.interp(at, known, [table[n] for n in known]))


def alone(rounds: Sequence[Round], batches: dict[int, list[Round]]) -> Costs:
    """Costs of a process that nobody works beside.

    Args:
        rounds: of drafts of several lengths, and of none, in batches of one.
        batches: by rows, of drafts of one length.
    """
    later = [one for one in rounds if not one.first]
    first, call = line(later)
    draft = {1: call}
    for rows, timed in batches.items():
        seconds = [(r.seconds["draft"] - first) / r.width for r in _full(timed)]
        draft[rows] = max(call, float(np.mean(seconds)))
    return Costs(
        means(by_width(later, lambda one: one.seconds["target"])),
        means(by_width(later, lambda one: one.after)),
        draft,
        first,
        begins_later(rounds),
    )


def line(rounds: Sequence[Round]) -> tuple[float, float]:
    """Seconds that a draft takes besides its calls, and those of a call, by least squares."""
    drafted = means(by_width([r for r in rounds if r.width], lambda one: one.seconds["draft"]))
    if len(drafted) < 2:
        return 0.0, float(np.mean([seconds / n for n, seconds in drafted.items()]))
    call, first = np.polyfit([*drafted], [*drafted.values()], 1)
    if first < 0 or call <= 0:
        return 0.0, sum(drafted.values()) / sum(drafted)
    return float(first), float(call)


def together(rounds: Sequence[Round], costs: Costs) -> Costs:
    """Costs of two processes that work beside each other.

    Args:
        rounds: of a drafter who works in a process of its own.
        costs: of the same calls alone.
    """
    both = [(r, r.drawing) for r in rounds if r.drawing is not None and not r.first]
    calls = np.array([costs.call(r.width) for r, _ in both])
    drafts = np.array([costs.drafting(drawn.count) for _, drawn in both])
    ask = np.array([r.seconds["draft"] for r, _ in both])
    target = np.array([r.seconds["target"] for r, _ in both])
    wake = np.array([drawn.begins for _, drawn in both])
    draft = np.array([drawn.ends - drawn.begins for _, drawn in both])
    receive = [r.seconds["wait"] - max(0.0, drawn.ends - r.read) for r, drawn in both]
    slow_target, slow_draft = target.sum() / calls.sum(), draft.sum() / drafts.sum()
    here = (ask + target) / (ask.mean() + slow_target * calls)
    there = (wake + draft) / (wake.mean() + slow_draft * drafts)
    beside = Beside(
        float(slow_target),
        float(slow_draft),
        float(ask.mean()),
        float(wake.mean()),
        float(np.mean(receive)),
        [(float(x), float(y)) for x, y in zip(here, there, strict=True)],
    )
    after = float(np.mean([r.after for r, _ in both]))
    return replace(costs, after={0: after}, begin=begins_later(rounds), beside=beside)


def known(calls: Sequence[Round], beside: Sequence[Round], batches: dict[int, list[Round]]) -> bool:
    """True if these are enough for `alone` and `together`."""
    drafted = by_width([r for r in calls if not r.first], lambda one: one.whole)
    drawn = [r for r in beside if r.drawing is not None and not r.first]
    return len(drafted) > 1 and bool(drawn) and all(map(_full, batches.values()))


def _full(rounds: Sequence[Round]) -> list[Round]:
    """Rounds of the greatest width, but for a generation's first."""
    width = max((one.width for one in rounds), default=0)
    return [one for one in rounds if width and one.width == width and not one.first]


def by_width(rounds: Sequence[Round], seconds: Callable[[Round], float]) -> dict[int, list[float]]:
    """Seconds of rounds by their width, of those with `FEWEST` rounds or more."""
    found = defaultdict(list)
    for one in rounds:
        found[one.width].append(seconds(one))
    return {n: times for n, times in sorted(found.items()) if len(times) >= FEWEST}


def means(table: dict[int, list[float]]) -> dict[int, float]:
    """Means of a table's times."""
    return {n: float(np.mean(times)) for n, times in table.items()}


def begins_later(rounds: Sequence[Round]) -> float:
    """Seconds that a generation's first round takes more than others as wide, the mean."""
    more = []
    for first in (one for one in rounds if one.first):
        later = [one.whole for one in rounds if not one.first and one.width == first.width]
        if later:
            more.append(first.whole - float(np.mean(later)))
    return float(np.mean(more)) if more else 0.0
