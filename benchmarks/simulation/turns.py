"""Turns of a measurement: costs and clocks side by side, and whether the costs foretell the clocks.

A turn times the calls of one prompt and the clock of another, in alternation, there and back. So a
machine that gets faster or slower does so for both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from mmspec.errors import InputError
from mmspec.eval.measure.bootstrap import ratio_interval

from .costs import Beside, Costs, alone, known, together
from .rounds import Round
from .schedules import Schedule, Text, drafting, drafting_ahead, plain, seconds_of
from .subject import BESIDE, CHECKED, LENGTH, LENGTHS, Likely, Subject, ahead, draft, played

ROWS = (4, 16)  # of a drafter's batch, beside one
TOLERANCE = 0.10
DRAWS = 20  # of coins, over which a simulated time is averaged

CLOCKED: dict[str, Schedule] = {
    "plain": plain,
    **{draft(length): drafting(length) for length in CHECKED},
    ahead(LENGTH): drafting_ahead(LENGTH),
}  # what runs here, and is to be foretold
TWO = ahead(LENGTH)  # of these, what takes two processes


@dataclass
class Run:
    """An output that was made several times.

    Attributes:
        seconds, times: of all of them together, and how many.
        stands, limit: see `Text`.
    """

    seconds: float
    times: int
    stands: list[bool]
    limit: int

    @property
    def output(self) -> Text:
        """The output, to be played."""
        return Text(np.array(self.stands, dtype=bool), self.limit)


@dataclass
class Turn:
    """Costs and clocks of a turn.

    Attributes:
        alone, beside: costs of one process, and of two that work beside each other.
        clocks: by method, whose clock is foretold.
    """

    alone: Costs
    beside: Costs
    clocks: dict[str, Run]


@dataclass
class Clock:
    """Clock of a method and what is foretold.

    Attributes:
        seen: seconds a token, of all turns.
        ratio, interval: foretold over measured time of the very same output, call by call; median
            over turns and 95 % interval.
        acceptance: simulated seconds a token of the recorded acceptances over those of the runs'
            own, at the same costs: how well a record foretells runs.
    """

    seen: float
    ratio: float
    interval: tuple[float, float]
    acceptance: float

    @property
    def told(self) -> float:
        """Seconds a token that costs and record foretell."""
        return self.seen * self.ratio * self.acceptance

    @property
    def quiet(self) -> bool:
        """True if the median is known to within `TOLERANCE`."""
        low, high = self.interval
        return high - low <= 2 * TOLERANCE

    @property
    def holds(self) -> bool:
        """True if it is foretold within `TOLERANCE`, of the same output and by the record."""
        ways = self.ratio, self.told / self.seen
        return all(abs(way - 1) <= TOLERANCE for way in ways)


def take_turn(subject: Subject, costs_of: int, clock_of: int, limit: int) -> Turn:
    """Time the calls of one prompt and the clocks of another.

    Args:
        subject: the pipeline.
        costs_of, clock_of: prompts.
        limit: tokens that an output may have.
    """
    timed = [(name, costs_of) for name in ("plain", *map(draft, LENGTHS), *map(ahead, BESIDE))]
    clocks = [(name, clock_of) for name in CLOCKED]
    order = [one for one in chain(*zip_longest(timed, clocks)) if one is not None]
    found: dict[tuple[str, int], list[list[Round]]] = {one: [] for one in order}
    for name, sample in (*order, *reversed(order)):
        found[name, sample].append(subject.rounds(name, sample))
    rounds = {one: list(chain(*several)) for one, several in found.items()}
    calls = [r for name in ("plain", *map(draft, LENGTHS)) for r in rounds[name, costs_of]]
    two = [r for name in map(ahead, BESIDE) for r in rounds[name, costs_of]]
    batches = {rows: subject.rounds(draft(LENGTH), costs_of, rows) for rows in ROWS}
    if not known(calls, two, batches):
        raise InputError(
            f"the answers to these prompts are too short to time drafts of {LENGTH} tokens; "
            "choose another suite"
        )
    costs = alone(calls, batches)
    runs = {}
    for name in CLOCKED:
        several = found[name, clock_of]
        seconds = sum(one.whole for one in rounds[name, clock_of])
        stands = played(several[0], limit).stands.tolist()
        runs[name] = Run(seconds, len(several), stands, limit)
    return Turn(costs, together(two, costs), runs)


def typical(costs: Sequence[Costs]) -> Costs:
    """Costs of several turns: medians, and the noise of all of them."""
    besides = [one.beside for one in costs]
    names = ("target", "draft", "ask", "wake", "receive")
    beside = {name: float(np.median([getattr(one, name) for one in besides])) for name in names}
    return Costs(
        _medians([one.target for one in costs]),
        _medians([one.after for one in costs]),
        _medians([one.draft for one in costs]),
        float(np.median([one.first for one in costs])),
        float(np.median([one.begin for one in costs])),
        beside=Beside(**beside, noise=[pair for one in besides for pair in one.noise]),
    )


def _medians(tables: Sequence[dict[int, float]]) -> dict[int, float]:
    keys = sorted({key for table in tables for key in table})
    return {key: float(np.median([table[key] for table in tables if key in table])) for key in keys}


def foretell(turns: Sequence[Turn], texts: Sequence[Likely]) -> dict[str, Clock]:
    """Clocks of all turns, and what the costs of each foretell.

    Args:
        turns: measured.
        texts: the record of any prompts.
    """
    found = {}
    for name, schedule in CLOCKED.items():
        of = [turn.beside if name == TWO else turn.alone for turn in turns]
        runs = [turn.clocks[name] for turn in turns]
        ratios = [
            run.times * played_seconds(run.output, schedule, costs) / run.seconds
            for run, costs in zip(runs, of, strict=True)
        ]
        costs = typical(of)
        recorded = sum(expected(text, schedule, costs) for text in texts)
        recorded /= sum(len(text.stands) for text in texts)
        ran = sum(played_seconds(run.output, schedule, costs) for run in runs)
        ran /= sum(len(run.stands) for run in runs)
        tokens = sum(run.times * len(run.stands) for run in runs)
        seen = sum(run.seconds for run in runs) / tokens
        found[name] = Clock(seen, *ratio_interval(ratios), recorded / ran)
    return found


def expected(text: Likely, schedule: Schedule, costs: Costs, devices: int = 2) -> float:
    """Simulated seconds of a text, the mean over coins."""
    return _mean(text.drawn, schedule, costs, devices)


def played_seconds(output: Text, schedule: Schedule, costs: Costs, devices: int = 2) -> float:
    """Simulated seconds of a run's own output, the mean over the noise of rounds."""
    return _mean(lambda _: output, schedule, costs, devices)


def _mean(text: Callable[[int], Text], schedule: Schedule, costs: Costs, devices: int) -> float:
    took = [seconds_of(schedule, text(n), costs, devices, n) for n in range(DRAWS)]
    return float(np.mean(took))


def read_turns(text: str) -> list[Turn]:
    """Turns of a `turns.json`."""
    return [
        Turn(
            _costs(turn["alone"]),
            _costs(turn["beside"]),
            {name: Run(**run) for name, run in turn["clocks"].items()},
        )
        for turn in json.loads(text)
    ]


def _costs(told: dict[str, Any]) -> Costs:
    for name in ("target", "after", "draft"):
        told[name] = {int(key): seconds for key, seconds in told[name].items()}
    return Costs(**{**told, "beside": Beside(**told["beside"])})
