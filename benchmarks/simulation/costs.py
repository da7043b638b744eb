"""Costs of the calls of a round, measured where they run."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    """

    width: int
    seconds: dict[str, float]

    @property
    def beside(self) -> float:
        """Seconds in neither model."""
        return sum(v for k, v in self.seconds.items() if k not in ("draft", "target", "wait"))


@contextmanager
def rounds_of() -> Iterator[list[Round]]:
    """Time every round of what runs inside; a generation's first is left out."""
    rounds: list[Round] = []
    current: dict[str, float] = {}
    leave = engine_stats._Phase.__exit__
    observe = engine_stats.SpecStats.observe
    width = [-1]  # of the round that goes on; −1: of a generation's first

    def left(phase: Any, *error: object) -> None:
        before = phase._seconds.get(phase._name, 0.0)
        leave(phase, *error)
        spent, name = phase._seconds[phase._name] - before, phase._name
        if name == "prefill":
            current.clear()
            width[0] = -1
            return
        if name == "draft" and "target" in current:
            name = "wait"
        current[name] = current.get(name, 0.0) + spent
        if name == "update":
            if width[0] >= 0:
                rounds.append(Round(width[0], dict(current)))
            current.clear()
            width[0] = 0

    def observed(stats: Any, nodes: int, *told: Any, **others: Any) -> None:
        if width[0] >= 0:
            width[0] = nodes
        observe(stats, nodes, *told, **others)

    with (
        patch.object(engine_stats._Phase, "__exit__", left),
        patch.object(engine_stats.SpecStats, "observe", observed),
    ):
        yield rounds


@dataclass
class Costs:
    """Medians of seconds.

    Attributes:
        target: of a call of the target that judges so many tokens, with what a round costs beside.
        draft: of a call of the drafter, by rows of its batch.
        quartiles: first and third, of the same.
        scale: factor of all that the drafter's device does.
    """

    target: dict[int, float]
    draft: dict[int, float]
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    scale: float = 1.0

    def call(self, drafted: int) -> float:
        """Seconds of a round's call for so many drafted tokens, between measured ones linear."""
        return _between(self.target, drafted)

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


def target_costs(
    rounds: Sequence[Round],
) -> tuple[dict[int, float], dict[str, tuple[float, float]]]:
    """Cost of a call by its width, with what a round costs beside it, and quartiles."""
    by_width = defaultdict(list)
    for one in rounds:
        by_width[one.width].append(one.seconds["target"] + one.beside)
    many = {n: times for n, times in sorted(by_width.items()) if len(times) >= FEWEST}
    spread = {f"target, {n}": quartiles(times) for n, times in many.items()}
    return {n: statistics.median(times) for n, times in many.items()}, spread


def draft_cost(rounds: Sequence[Round]) -> tuple[float, tuple[float, float]]:
    """Cost of a call of the drafter, and quartiles."""
    times = [one.seconds["draft"] / one.width for one in rounds if one.width]
    return statistics.median(times), quartiles(times)


def draft_cost_beside(rounds: Sequence[Round], count: int) -> tuple[float, tuple[float, float]]:
    """The same of a drafter that draws `count` tokens while the target reads.

    It has worked as long as the target has read, and been waited for; where nobody waited it may
    have been done long before.
    """
    waited = [r for r in rounds if r.seconds.get("wait", 0.0) > 0.1 * r.seconds["target"]]
    times = [(r.seconds["target"] + r.seconds["wait"]) / count for r in waited or rounds]
    return statistics.median(times), quartiles(times)


def quartiles(times: Sequence[float]) -> tuple[float, float]:
    """The first and the third."""
    low, high = np.quantile(times, (0.25, 0.75))
    return float(low), float(high)
