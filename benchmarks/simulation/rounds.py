"""Rounds of the loop as they run: times by phase, verdicts, and what another process does."""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import numpy as np

from mmspec.draft.ahead import ChainAhead
from mmspec.engine import stats as engine_stats

SPANS = 4096  # drafts of another process that are noted in one recording


@dataclass
class Drawing:
    """Drafting in another process: seconds since the round began, and tokens."""

    begins: float
    ends: float
    count: int


@dataclass
class Round:
    """A round of the loop.

    Attributes:
        width: tokens that were drafted and judged.
        seconds: by phase; "wait" is that for a drafter who works beside the target.
        first: it is the first of a generation.
        accepted, emitted: tokens of the first row.
        guessed: the guess of the token behind the draft stood.
        read: seconds since the round began at which the target had read the draft.
        drawing: that of a drafter in another process; None: there is none.
    """

    width: int
    seconds: dict[str, float]
    first: bool = False
    accepted: int = 0
    emitted: int = 0
    guessed: bool = False
    read: float = 0.0
    drawing: Drawing | None = None

    @property
    def whole(self) -> float:
        """Seconds of all of it."""
        return sum(self.seconds.values())

    @property
    def after(self) -> float:
        """Seconds in neither model: they come behind both."""
        return sum(v for k, v in self.seconds.items() if k not in ("draft", "target", "wait"))


@dataclass
class _Open:
    """The round that goes on."""

    first: bool = True
    began: float = 0.0
    read: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    verdict: tuple[int, int, int, bool] = (0, 0, 0, False)


@contextmanager
def rounds_of() -> Iterator[list[Round]]:
    """Time every round of what runs inside, in batches without seats."""
    rounds, began = list[Round](), list[float]()
    leave, observe = engine_stats._Phase.__exit__, engine_stats.SpecStats.observe_calls
    now = _Open()

    def left(phase: Any, *error: object) -> None:
        before = phase._seconds.get(phase._name, 0.0)
        leave(phase, *error)
        spent, name = phase._seconds[phase._name] - before, phase._name
        if name == "prefill":
            now.first, now.seconds = True, {}
            return
        if name == "draft" and "target" in now.seconds:
            name = "wait"
        if not now.seconds:
            now.began = phase._started
        now.seconds[name] = now.seconds.get(name, 0.0) + spent
        if name == "target":
            now.read = phase._started + spent - now.began
        if name == "update":
            width, accepted, emitted, guessed = now.verdict
            told = now.first, accepted, emitted, guessed, now.read
            rounds.append(Round(width, now.seconds, *told))
            began.append(now.began)
            now.first, now.seconds = False, {}

    def observed(stats: Any, draft: Any, verdict: Any, counts: Any, *others: Any) -> None:
        guessed = verdict.guessed is not None and int(verdict.guessed[0]) > 0
        stood = min(int(verdict.accepted[0]), counts[0])
        now.verdict = draft.nodes, stood, counts[0], guessed
        observe(stats, draft, verdict, counts, *others)

    with (
        patch.object(engine_stats._Phase, "__exit__", left),
        patch.object(engine_stats.SpecStats, "observe_calls", observed),
        _drawings() as spans,
    ):
        yield rounds
        for one, start in zip(rounds, began, strict=True):
            inside = (spans[:, 0] >= start) & (spans[:, 1] <= start + one.read + _wait(one))
            for begins, ends, count in spans[inside][:1]:
                one.drawing = Drawing(begins - start, ends - start, int(count))


def _wait(one: Round) -> float:
    return one.seconds.get("wait", 0.0)


@contextmanager
def _drawings() -> Iterator[np.ndarray[Any, Any]]:
    """Begin, end and tokens of drafts ahead `[SPANS, 3]`, on the clock that processes share."""
    shared = np.frombuffer(mmap.mmap(-1, 8 * 3 * (SPANS + 1))).reshape(-1, 3)
    draw = ChainAhead.draw

    def noted(self: Any, tokens: Any, known: Any, ends: Any, count: int, coins: Any) -> Any:
        begins = time.perf_counter()
        drawn = draw(self, tokens, known, ends, count, coins)
        number = int(shared[0, 0]) + 1  # the first row counts
        shared[number] = begins, time.perf_counter(), count
        shared[0, 0] = number
        return drawn

    with patch.object(ChainAhead, "draw", noted):
        yield shared[1:]
