"""Records, costs and clocks of a simulation, and the rows that stand on them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch

from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import FEWEST_PAIRS
from mmspec.eval.run.job import Job

from .batches import ARRIVALS, POLICIES, batch_latency
from .costs import Beside
from .layers import Parts, mean_parts, parts_of
from .load import LOADS, latency
from .rounds import Round, rounds_of
from .schedules import Text, plain
from .subject import (
    FUZZY_COPY,
    LENGTH,
    Likely,
    Subject,
    bits_of,
    draft,
    layers_of,
    likely,
    played,
    pruned,
)
from .systems import CANDIDATES, DRAFT, FASER, SCALES, Paired, Recorded, Simulated, Thrown, systems
from .turns import Clock, Turn, foretell, take_turn, typical

PIPELINES: tuple[Literal["vlm", "image"], ...] = ("vlm", "image")  # of its suites


@dataclass
class SimulationRecord:
    """Record of what was measured, and what was simulated on it.

    Attributes:
        samples: prompts; costs were measured on the even ones, clocks on the odd ones.
        layer, layers: of the target, the one that tells ahead, and all.
        load: processes that ran or waited on the machine, means of a minute, before and after.
        stands: share of drafted tokens that stand, given that those before them did, by drafter.
        foreseen: how often the token that comes next is among the best of a middle layer.
        spared: share of layers times drafted tokens that pruning spared in real runs.
        costs: milliseconds and factors of each turn: median and middle half.
        clock: of what ran, measured and foretold.
        speedups: simulated, over plain decoding, by system and scale of the drafter's costs:
            median over prompts and 95 % interval. Empty if the clock was not foretold.
        latencies: simulated seconds of a request, by system, load, and scale.
        batched: the same of requests that join a batch, by who chooses lengths.
        experts: of a target with sparse experts, how many of a layer's a call and a draft touch.
    """

    environment: dict[str, Any]
    samples: int
    layer: int
    layers: int
    load: tuple[float, float]
    stands: dict[str, float] = field(default_factory=dict)
    foreseen: dict[int, float] = field(default_factory=dict)
    spared: float = 0.0
    costs: dict[str, Paired] = field(default_factory=dict)
    clock: dict[str, Clock] = field(default_factory=dict)
    speedups: dict[str, dict[float, Paired]] = field(default_factory=dict)
    latencies: dict[str, dict[float, list[float]]] = field(default_factory=dict)
    batched: dict[str, dict[float, list[float]]] = field(default_factory=dict)
    experts: dict[str, float] = field(default_factory=dict)

    @property
    def quiet(self) -> bool:
        """True if the clock of every method is known well enough to judge what is foretold."""
        return self.enough and all(clock.quiet for clock in self.clock.values())

    @property
    def enough(self) -> bool:
        """True if there are as many turns as an interval takes."""
        return self.samples // 2 >= FEWEST_PAIRS

    @property
    def holds(self) -> bool:
        """True if every clock was foretold, on a machine quiet enough to tell."""
        return self.quiet and all(clock.holds for clock in self.clock.values())


def measure(
    job: Job, pipe: Any, samples: int, layer: int, done: Callable[[], object] = lambda: None
) -> tuple[SimulationRecord, list[Turn]]:
    """Record, measure, foretell the clock and simulate; the record, and the turns behind it.

    Args:
        job: with `methods_of(layer, pipe)`, and one way to call.
        pipe: its pipeline.
        samples: prompts, an even number.
        layer: of the target, that tells what is likely in the middle of a call.
        done: called `steps(samples)` times.
    """
    subject, layers = Subject(job, pipe), layers_of(pipe)
    before = os.getloadavg()[0]
    with one_thread():
        limit = subject.trace(draft(LENGTH), 0).limit
        take_turn(subject, 0, 1, limit)  # warms up
        turns = list[Turn]()
        for n in range(0, samples, 2):
            turns.append(take_turn(subject, n, n + 1, limit))
            done()
        load = before, os.getloadavg()[0]
        record = SimulationRecord(environment(pipe.device), samples, layer, layers, load)
        texts, gone = list[Likely](), list[Likely]()
        bits, copies, restricted = (list[list[Round]]() for _ in range(3))
        spared, parts, twin = list[float](), list[Parts](), subject.copied()
        nested, touched = bits_of(pipe), dict[str, list[float]]()
        for n in range(samples):
            pair = likely(subject, n, layer)
            texts.append(pair[0])
            gone.append(pair[1])
            with rounds_of() as rounds:
                stats = subject.run(nested, n)
            bits.append(rounds)
            for name in ("judging_experts", "drafting_experts"):
                touched.setdefault(name, []).extend(getattr(stats, name, []))
            with rounds_of() as rounds:
                spared.append(subject.run(pruned(layer), n).spared)
            restricted.append(rounds)
            copies.append(twin.rounds(FUZZY_COPY, n))  # the clocks of its layers take time, too
            with parts_of() as found:
                twin.run(FUZZY_COPY, n)
            parts += found
            done()
    record.stands = {
        "the draft model": float(np.mean([x for text in texts for x in text.stands])),
        "the same, pruned, by the record": float(np.mean([x for t in gone for x in t.stands])),
        "the same, pruned, in runs": _stood(restricted),
        "the target's high bits": _stood(bits),
        "the target with fuzzy layers": _stood(copies),
    }
    record.experts = {name: float(np.mean(x)) for name, x in touched.items() if x}
    record.spared = float(np.mean(spared))
    ranks = np.concatenate([text.early for text in texts])
    record.foreseen = {k: float((ranks < k).mean()) for k in CANDIDATES}
    record.clock = foretell(turns, texts)
    fuzzy = mean_parts(parts)
    record.costs = costs_table(turns, fuzzy)
    if record.holds:
        costs = typical([turn.alone for turn in turns])
        beside = typical([turn.beside for turn in turns])
        of = Recorded(
            texts,
            gone,
            _played(bits, texts),
            _played(copies, texts),
            layer / layers,
            costs,
            beside,
            _copy_call(copies),
            fuzzy,
        )
        simulate(record, of)
    return record, turns


def steps(samples: int) -> int:
    """Steps of a measurement: turns, and then prompts."""
    return samples // 2 + samples


@contextmanager
def one_thread() -> Iterator[None]:
    """Leave every process one thread, so that a device is a core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def simulate(record: SimulationRecord, of: Recorded) -> None:
    """Fill in what is simulated."""
    found = systems(of)
    record.speedups = {
        name: {scale: system.speedup(scale, of.alone) for scale in SCALES}
        for name, system in found.items()
    }
    plainly = Simulated(plain, Thrown(of.texts), of.alone, 1)
    whole = float(np.mean(plainly.seconds(1.0)))
    served = {"plain, one device": plainly, **{name: found[name] for name in (DRAFT, FASER)}}
    for name, system in served.items():
        seconds = [system.seconds(scale) for scale in SCALES]
        record.latencies[name] = {
            load: [latency(took, whole / load) for took in seconds] for load in LOADS
        }
    costs = [replace(of.alone, scale=scale) for scale in SCALES]
    for name, made in POLICIES.items():
        record.batched[name] = {
            load: [batch_latency(of.texts, made, cost, whole / load) for cost in costs]
            for load in ARRIVALS
        }


def costs_table(turns: Sequence[Turn], parts: Parts | None) -> dict[str, Paired]:
    """Costs by what they are of, median over turns and middle half."""
    found: dict[str, list[float]] = {}

    def add(name: str, value: float) -> None:
        found.setdefault(name, []).append(value)

    for turn in turns:
        costs, together = turn.alone, turn.beside
        tables = (
            ("target's call, {} drafted, ms", costs.target),
            ("rest of a round, {} drafted, ms", costs.after),
            ("draft model's call, batch of {}, ms", costs.draft),
        )
        for name, table in tables:
            for n, seconds in table.items():
                add(name.format(n), 1e3 * seconds)
        add("a draft besides its calls, ms", 1e3 * costs.first)
        add("a first round's more, ms", 1e3 * costs.begin)
        _beside(add, together.beside)
        add("rest of a round with a guess, ms", 1e3 * together.rest(0))
        add("a first round's more, of two processes, ms", 1e3 * together.begin)
    if parts is not None:
        add(f"attention of a layer of {parts.layers}, ms", 1e3 * parts.attention)
        add("MLP of such a layer, ms", 1e3 * parts.mlp)
    return {
        name: (float(np.median(x)), (float(np.quantile(x, 0.25)), float(np.quantile(x, 0.75))))
        for name, x in found.items()
    }


def _beside(add: Callable[[str, float], None], beside: Beside) -> None:
    add("target's call beside a drafter, times one alone", beside.target)
    add("draft model's call beside the target, times one alone", beside.draft)
    add("to ask the other process, ms", 1e3 * beside.ask)
    add("till it begins, ms", 1e3 * beside.wake)
    add("to take in what it drafted, ms", 1e3 * beside.receive)


def _stood(runs: Sequence[Sequence[Round]]) -> float:
    """Share of judged tokens that stood, given that those before them did."""
    judged = sum(min(r.accepted + 1, r.width) for rounds in runs for r in rounds)
    return sum(r.accepted for rounds in runs for r in rounds) / max(1, judged)


def _played(runs: Sequence[Sequence[Round]], texts: Sequence[Likely]) -> list[Text]:
    return [played(rounds, text.limit) for rounds, text in zip(runs, texts, strict=True)]


def _copy_call(runs: Sequence[Sequence[Round]]) -> float:
    return float(
        np.mean([r.seconds["draft"] / r.width for x in runs for r in x if r.width and not r.first])
    )
