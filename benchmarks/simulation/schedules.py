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
        pruned: of every token, whether a middle layer prunes a draft of it; None: none does.
        at: tokens that are there.
    """

    stands: NDArray[np.bool_]
    limit: int
    early: NDArray[np.int64] | None = None
    pruned: NDArray[np.bool_] | None = None
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

    def left(self, drafted: int) -> int:
        """Number of so many drafted tokens that are not pruned.

        What is drafted behind a token that falls is on no record: it is taken to be read, unless
        the token that falls is pruned itself.
        """
        fallen = self.at + self.accepted(drafted)
        if self.pruned is None or fallen >= min(self.at + drafted, len(self.stands)):
            return drafted
        return fallen - self.at if self.pruned[fallen] else drafted

    def drafted(self, at: int) -> bool:
        """True if a draft of a token stands; of one behind the end none does."""
        return at < len(self.stands) and bool(self.stands[at])

    def foreseen(self, at: int, best: int) -> bool:
        """True if a token is among the `best` of the middle layer."""
        assert self.early is not None
        return at < len(self.early) and bool(self.early[at] < best)


class World:
    """Devices of a simulation: the target's, and others beside it.

    Args:
        costs: seconds of calls.
        devices: how many there are.
        seed: of the rounds whose noise is drawn.
    """

    def __init__(self, costs: Costs, devices: int = 2, seed: int = 0) -> None:
        self.env, self.costs = simpy.Environment(), costs
        self.devices = [simpy.Resource(self.env) for _ in range(devices)]
        self.first, self.second = self.devices[0], self.devices[-1]
        self._coins = np.random.default_rng(seed)

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

    def both(self, call: float, count: int) -> Process:
        """A call of the target of so many seconds, while so many tokens are drafted beside it."""
        if not count:
            yield from self.use(self.first, call)
            return
        beside = self.costs.beside
        here, there = beside.noise[int(self._coins.integers(len(beside.noise)))]
        drafting = beside.wake + beside.draft * self.costs.drafting(count)
        drawing = self.begin(there * drafting)
        yield from self.use(self.first, here * (beside.ask + beside.target * call))
        yield drawing
        yield from self.use(self.first, beside.receive)

    def begin(self, seconds: float) -> simpy.Process:
        """Work that begins on the second device while others go on; it may be interrupted."""
        return self.env.process(self._until_stopped(seconds))

    def _until_stopped(self, seconds: float) -> Process:
        with suppress(simpy.Interrupt):
            yield from self.use(self.second, seconds)


Schedule = Callable[[World, Text], Process]


def seconds_of(
    schedule: Schedule, text: Text, costs: Costs, devices: int = 2, seed: int = 0
) -> float:
    """Simulated seconds until a text is there."""
    world = World(costs, devices, seed)
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
            yield from world.both(world.costs.call(drafted), count)
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
