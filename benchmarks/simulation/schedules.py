"""Schedules of drafting and judging on devices, as processes of a discrete-event simulation."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import simpy
from numpy.typing import NDArray

from .costs import Costs

Process = Generator[Any, Any, Any]


@dataclass
class Text:
    """An output that is to be made, and what would stand in it.

    Attributes:
        stands: of every token, whether a draft of it stands.
        limit: tokens that it may have at most; nobody knows before that it ends earlier.
        early: of every token, how many a middle layer of the target holds to be likelier; None:
            none was asked.
        at: tokens that are there.
    """

    stands: NDArray[np.bool_]
    limit: int
    early: NDArray[np.int64] | None = None
    at: int = 0

    @property
    def going(self) -> bool:
        """True while a token is missing."""
        return self.at < len(self.stands)

    @property
    def room(self) -> int:
        """Tokens that there is room for."""
        return self.limit - self.at

    def accepted(self, drafted: int) -> int:
        """Number of so many drafted tokens that stand."""
        run = self.stands[self.at : self.at + drafted]
        return int(run.argmin()) if not run.all() else len(run)

    def drafted(self, at: int) -> bool:
        """True if a draft of a token stands; of one behind the end none does."""
        return at < len(self.stands) and bool(self.stands[at])

    def foreseen(self, at: int, best: int) -> bool:
        """True if a token is among the `best` of the middle layer."""
        assert self.early is not None
        return at < len(self.early) and bool(self.early[at] < best)


class World:
    """Devices of a simulation: the target's, and another beside it.

    Args:
        costs: seconds of calls.
    """

    def __init__(self, costs: Costs) -> None:
        self.env, self.costs = simpy.Environment(), costs
        self.first, self.second = (simpy.Resource(self.env) for _ in range(2))

    def use(self, device: simpy.Resource, seconds: float) -> Process:
        """Work on a device."""
        with device.request() as turn:
            yield turn
            yield self.env.timeout(seconds)

    def judge(self, drafted: int) -> Process:
        """A call of the target, and what comes behind it."""
        yield from self.use(self.first, self.costs.call(drafted))
        yield from self.rest(drafted)

    def rest(self, drafted: int) -> Process:
        """Judge, keep and count: what a round does behind both models."""
        yield from self.use(self.first, self.costs.rest(drafted))

    def begin(self, seconds: float) -> simpy.Process:
        """Work that begins on the second device while others go on; it may be interrupted."""
        return self.env.process(self._until_stopped(seconds))

    def _until_stopped(self, seconds: float) -> Process:
        with suppress(simpy.Interrupt):
            yield from self.use(self.second, seconds)


Schedule = Callable[[World, Text], Process]


def seconds_of(schedule: Schedule, text: Text, costs: Costs) -> float:
    """Simulated seconds until a text is there."""
    world = World(costs)
    world.env.run(until=world.env.process(schedule(world, replace(text, at=0))))
    return costs.begin + float(world.env.now)


def plain(world: World, text: Text) -> Process:
    """Plain decoding: one token a call."""
    while text.going:
        yield from world.judge(0)
        text.at += 1


def drafting(length: int) -> Schedule:
    """Draft so many tokens on the target's device, judge them, and so on."""

    def schedule(world: World, text: Text) -> Process:
        while text.going:
            drafted = min(length, text.room - 1)
            if drafted:
                yield from world.use(world.first, world.costs.drafting(drafted))
            yield from world.judge(drafted)
            text.at += text.accepted(drafted) + 1

    return schedule


def drafting_ahead(length: int) -> Schedule:
    """PEARL, see `mmspec.draft.ahead`: draw the next tokens on another device meanwhile."""

    def schedule(world: World, text: Text) -> Process:
        ready = 0
        while text.going:
            drafted = min(ready, length, text.room - 1)
            count = 0 if text.room == 1 else min(length + 1, text.room - drafted)
            drawing = world.begin(world.costs.drafting(count))
            yield from world.use(world.first, world.costs.call(drafted))
            yield drawing
            yield from world.rest(drafted)
            accepted = text.accepted(drafted)
            guessed = count and accepted == drafted and text.drafted(text.at + drafted)
            ready = count - 1 if guessed else 0
            text.at += accepted + 1

    return schedule


def mirrored(length: int, best: int, part: float) -> Schedule:
    """Mirror-SD: a middle layer tells the drafter's device what to get ready for.

    The drafter writes on behind every place of the draft, as if the target corrected it there by
    each of the `best` tokens that the middle layer holds to be likeliest. If the correction is
    among them, the next draft is there. What the devices tell each other takes no time, and the
    drafter says one token a call; the published one says several.

    Args:
        length: tokens of a draft.
        best: candidates a place; 0: nothing is got ready.
        part: of the target's layers that have run when the middle one tells.
    """

    def schedule(world: World, text: Text) -> Process:
        ready = False
        while text.going:
            drafted = min(length, text.room - 1)
            if drafted and not ready:
                yield from world.use(world.second, world.costs.drafting(drafted))
            whole, branches = world.costs.call(drafted), (drafted + 1) * best
            yield from world.use(world.first, part * whole)
            drawing = world.begin(world.costs.drafting(length, branches)) if best else None
            yield from world.use(world.first, (1 - part) * whole)
            yield from world.rest(drafted)
            corrected = text.at + text.accepted(drafted)
            ready = bool(best) and text.foreseen(corrected, best)
            text.at = corrected + 1
            if drawing is not None and ready and text.going:
                yield drawing
            elif drawing is not None and drawing.is_alive:
                drawing.interrupt()  # nobody wants them

    return schedule
