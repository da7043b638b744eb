"""Costs of the calls of a round, measured where they run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np

from mmspec.engine import stats as engine_stats

FEWEST = 5  # rounds of a width, or its cost is not known


@dataclass
class Round:
    """Times of a round of the loop.

    Attributes:
        width: tokens that were drafted and judged.
        seconds: by phase; "wait" is that of a drafter who works beside the target.
        first: it is the first of a generation.
    """

    width: int
    seconds: dict[str, float]
    first: bool = False

    @property
    def whole(self) -> float:
        """Seconds of all of it."""
        return sum(self.seconds.values())

    @property
    def after(self) -> float:
        """Seconds in neither model: they come behind both."""
        return sum(v for k, v in self.seconds.items() if k not in ("draft", "target", "wait"))


@contextmanager
def rounds_of() -> Iterator[list[Round]]:
    """Time every round of what runs inside."""
    rounds: list[Round] = []
    current: dict[str, float] = {}
    leave = engine_stats._Phase.__exit__
    observe = engine_stats.SpecStats.observe
    width, begins = [0], [True]  # of the round that goes on; whether it is a generation's first

    def left(phase: Any, *error: object) -> None:
        before = phase._seconds.get(phase._name, 0.0)
        leave(phase, *error)
        spent, name = phase._seconds[phase._name] - before, phase._name
        if name == "prefill":
            current.clear()
            begins[0] = True
            return
        if name == "draft" and "target" in current:
            name = "wait"
        current[name] = current.get(name, 0.0) + spent
        if name == "update":
            rounds.append(Round(width[0], dict(current), begins[0]))
            current.clear()
            begins[0] = False

    def observed(stats: Any, nodes: int, *told: Any, **others: Any) -> None:
        width[0] = nodes
        observe(stats, nodes, *told, **others)

    with (
        patch.object(engine_stats._Phase, "__exit__", left),
        patch.object(engine_stats.SpecStats, "observe", observed),
    ):
        yield rounds


@dataclass
class Costs:
    """Mean seconds.

    Attributes:
        target: of a call of the target that judges so many tokens.
        after: of what a round does behind it, in neither model.
        draft: of a call of the drafter, by rows of its batch.
        begin: that a generation's first round takes more than others.
        scale: factor of all that the drafter's device does.
    """

    target: dict[int, float]
    after: dict[int, float]
    draft: dict[int, float]
    begin: float = 0.0
    scale: float = 1.0

    def call(self, drafted: int) -> float:
        """Seconds of a call for so many drafted tokens, between measured ones linear."""
        return _between(self.target, drafted)

    def rest(self, drafted: int) -> float:
        """Seconds of what comes behind it."""
        return _between(self.after, drafted)

    def drafting(self, tokens: int, rows: int = 1) -> float:
        """Seconds that so many calls of the drafter take for so many rows."""
        return self.scale * tokens * _between(self.draft, rows)


def _between(table: dict[int, float], at: int) -> float:
    """Value between a table's, linear; beyond its last two as they go on."""
    known = sorted(table)
    if at > known[-1] and len(known) > 1:
        low, high = known[-2:]
        slope = (table[high] - table[low]) / (high - low)
        return table[high] + max(0.0, slope) * (at - high)
    return float(np.interp(at, known, [table[n] for n in known]))


def by_width(rounds: Sequence[Round], seconds: Callable[[Round], float]) -> dict[int, list[float]]:
    """Seconds of rounds by their width, of those with `FEWEST` rounds or more."""
    found = defaultdict(list)
    for one in rounds:
        found[one.width].append(seconds(one))
    return {n: times for n, times in sorted(found.items()) if len(times) >= FEWEST}


def begins_later(rounds: Sequence[Round]) -> float:
    """Seconds that a generation's first round takes more than others as wide."""
    first = [one for one in rounds if one.first]
    later = [one.whole for one in rounds if not one.first and one.width == first[0].width]
    return float(np.mean([one.whole for one in first]) - np.mean(later)) if later else 0.0


def draft_calls(rounds: Sequence[Round]) -> list[float]:
    """Seconds of the drafter's calls, the mean of each round."""
    return [one.seconds["draft"] / one.width for one in rounds if one.width]


def draft_calls_beside(rounds: Sequence[Round], count: int) -> list[float]:
    """The same of a drafter that draws `count` tokens while the target reads.

    It has worked as long as the target has read, and been waited for; where nobody waited it may
    have been done long before.
    """
    waited = [r for r in rounds if r.seconds.get("wait", 0.0) > 0.1 * r.seconds["target"]]
    return [(r.seconds["target"] + r.seconds["wait"]) / count for r in waited or rounds]


def quartiles(times: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    low, high = np.quantile(times, (0.25, 0.75))
    return float(low), float(high)
