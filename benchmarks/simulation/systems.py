"""Systems that are simulated: a schedule, the outputs that it plays, and the costs that it pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from mmspec.eval.measure.bootstrap import ratio_interval

from .chunks import chunked, pruning
from .costs import Costs
from .layers import Parts, side_by_side
from .schedules import Schedule, Text, drafting, drafting_ahead, mirrored, plain
from .subject import FUZZY, LENGTH, PRUNES, Likely
from .turns import expected, played_seconds

CANDIDATES = (1, 2, 4, 8)  # that a middle layer tells
CHUNKED, CHUNK = 8, 4  # tokens of a draft that is judged in chunks
DEVICES = (1, 2, 4)  # of layers side by side
SCALES = (0.8, 1.0, 1.25)  # of what the drafter's device takes
HALF = 0.5  # of an int8 weight's bits that are its high ones
DRAFT = f"draft, {LENGTH} tokens, one device"
FASER = f"FASER, {CHUNKED} tokens in pruned chunks of {CHUNK}, two shares of a processor"
Paired = tuple[float, tuple[float, float]]


@dataclass
class Recorded:
    """Outputs, and what they take.

    Attributes:
        texts, pruned: of the draft model, and the same where a middle layer prunes.
        bits, copies: played, by the target's high bits, and by a copy of it with fuzzy layers.
        part: of the target's layers that have run when the middle one tells.
        alone, beside: costs of devices that share nothing, and of processes that share a memory.
        copy_call: seconds of a call of the copy.
        parts: of such a call; None: it is of a kind whose layers can't be timed.
    """

    texts: Sequence[Likely]
    pruned: Sequence[Likely]
    bits: Sequence[Text]
    copies: Sequence[Text]
    part: float
    alone: Costs
    beside: Costs
    copy_call: float
    parts: Parts | None


class Outputs(Protocol):
    """Outputs that are played, by the method that makes them."""

    def __len__(self) -> int: ...

    def seconds(self, number: int, schedule: Schedule, costs: Costs, devices: int) -> float:
        """Simulated seconds of one."""


@dataclass
class Thrown:
    """Outputs whose acceptances are drawn from a record."""

    texts: Sequence[Likely]

    def __len__(self) -> int:
        return len(self.texts)

    def seconds(self, number: int, schedule: Schedule, costs: Costs, devices: int) -> float:
        """Simulated seconds of one, the mean over coins."""
        return expected(self.texts[number], schedule, costs, devices)


@dataclass
class Played:
    """Outputs of runs."""

    texts: Sequence[Text]

    def __len__(self) -> int:
        return len(self.texts)

    def seconds(self, number: int, schedule: Schedule, costs: Costs, devices: int) -> float:
        """Simulated seconds of one, the mean over the noise of rounds."""
        return played_seconds(self.texts[number], schedule, costs, devices)


@dataclass
class Simulated:
    """A system: its schedule on the outputs of its method, at its costs."""

    schedule: Schedule
    outputs: Outputs
    costs: Costs
    devices: int = 2

    def seconds(self, scale: float) -> list[float]:
        """Simulated seconds of every output, with the drafter's costs scaled."""
        costs = replace(self.costs, scale=scale)
        return [
            self.outputs.seconds(n, self.schedule, costs, self.devices)
            for n in range(len(self.outputs))
        ]

    def speedup(self, scale: float, costs: Costs) -> Paired:
        """Speed-up over plain decoding at `costs`: median over outputs and 95 % interval."""
        plainly = [self.outputs.seconds(n, plain, costs, 1) for n in range(len(self.outputs))]
        pairs = zip(plainly, self.seconds(scale), strict=True)
        return ratio_interval([whole / part for whole, part in pairs])


def systems(of: Recorded) -> dict[str, Simulated]:
    """The systems by name."""
    texts, pruned, alone = Thrown(of.texts), Thrown(of.pruned), of.alone
    half = replace(alone, draft={1: HALF * alone.call(0)}, first=0.0)
    copied = replace(alone, draft={1: of.copy_call}, first=0.0)
    shares = replace(of.beside, begin=alone.begin)  # nobody forks
    found = {
        DRAFT: Simulated(drafting(LENGTH), texts, alone, 1),
        f"PEARL, {LENGTH} tokens, two devices": Simulated(drafting_ahead(LENGTH), texts, alone),
        **{
            f"Mirror-SD, {LENGTH} tokens, the {k} likeliest": Simulated(
                mirrored(LENGTH, k, of.part), texts, alone
            )
            for k in (0, *CANDIDATES)
        },
        f"FASER, {LENGTH} tokens, pruned below {PRUNES:g}, one device": Simulated(
            pruning(LENGTH, of.part), pruned, alone, 1
        ),
        f"FASER, {CHUNKED} tokens in chunks of {CHUNK}, two shares of a processor": Simulated(
            chunked(CHUNKED, CHUNK, 1.0), texts, shares
        ),
        FASER: Simulated(chunked(CHUNKED, CHUNK, of.part), pruned, shares),
        f"ELMoE-3D, {LENGTH} tokens": Simulated(drafting(LENGTH), Played(of.bits), half, 1),
    }
    for devices in DEVICES if of.parts is not None else ():
        assert of.parts is not None
        found[f"EasySpec, the target drafts, {FUZZY} layers a group, {_devices(devices)}"] = (
            Simulated(side_by_side(LENGTH, FUZZY, of.parts), Played(of.copies), copied, devices)
        )
    return found


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"
