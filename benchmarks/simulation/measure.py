"""Records, costs and clocks of a simulation, and the rows that stand on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import ratio_interval
from mmspec.eval.modalities.base import modality
from mmspec.eval.run.job import Job
from mmspec.pipelines.notices import timed_apart

from .costs import (
    Costs,
    Round,
    begins_later,
    by_width,
    draft_calls,
    draft_calls_beside,
    quartiles,
    rounds_of,
)
from .recorded import Trace, recording
from .schedules import Schedule, Text, drafting, drafting_ahead, mirrored, plain, seconds_of

PIPELINES: tuple[Literal["vlm", "image"], ...] = ("vlm", "image")  # of its suites
LENGTHS = (1, 2, 4, 8)  # drafts whose rounds are timed
LENGTH, CHECKED = 4, (3, 6)  # of what is simulated, and of drafts that it must foretell
ROWS = (1, 4, 16)  # of a drafter's batch
CANDIDATES = (1, 2, 4, 8)  # that a middle layer tells
SCALES = (0.8, 1.0, 1.25)  # of what the drafter's device takes
TOLERANCE = 0.10
DRAWS = 20  # of coins, over which a simulated time is averaged
BITS = "specqd[target_weights=int8,draft_weights=int8-high4]"
ELMOE = f"ELMoE-3D's bits, {LENGTH} tokens"
HALF = 0.5  # of an int8 weight's bits that are its high ones

Paired = tuple[float, tuple[float, float]]


@dataclass
class SimulationRecord:
    """Record of what was measured, and what was simulated on it.

    Attributes:
        samples: prompts; costs were measured on the even ones, the clock on the odd ones.
        layer, layers: of the target, the one that tells ahead, and all.
        stands: share of drafted tokens that stand, given that those before them did, by drafter.
        foreseen: how often the token that comes next is among the best of a middle layer.
        costs, quartiles: milliseconds.
        clock: seconds a token, measured and simulated, by what ran.
        speedups: simulated, over plain decoding, by system and scale of the drafter's costs:
            median over prompts and 95 % interval. Empty if the clock was not foretold.
    """

    environment: dict[str, Any]
    samples: int
    layer: int
    layers: int
    stands: dict[str, float] = field(default_factory=dict)
    foreseen: dict[int, float] = field(default_factory=dict)
    costs: dict[str, float] = field(default_factory=dict)
    quartiles: dict[str, tuple[float, float]] = field(default_factory=dict)
    clock: dict[str, tuple[float, float]] = field(default_factory=dict)
    speedups: dict[str, dict[float, Paired]] = field(default_factory=dict)

    @property
    def holds(self) -> bool:
        """True if every clock was foretold within `TOLERANCE`."""
        return all(abs(told / seen - 1) <= TOLERANCE for seen, told in self.clock.values())


def methods_of(layer: int) -> tuple[str, ...]:
    """The methods that run, as `--methods` takes them."""
    drafts = [_draft(n) for n in sorted({*LENGTHS, *CHECKED})]
    return ("plain", *drafts, _ahead(LENGTH), _early(layer), BITS)


def _draft(length: int) -> str:
    return f"draft[num_draft_tokens={length}]"


def _ahead(length: int) -> str:
    return f"pearl[num_draft_tokens={length}]"


def _early(layer: int) -> str:
    return f"early-exit[exit_layer={layer}]"


CLOCKED: dict[str, Schedule] = {
    "plain": plain,
    **{_draft(length): drafting(length) for length in CHECKED},
    _ahead(LENGTH): drafting_ahead(LENGTH),
}  # what runs here, and is to be foretold


class Subject:
    """A suite's prompts on its pipeline, one method at a time."""

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.bench = job, modality(job.suite.pipeline).bench(job, pipe)

    def run(self, method: str, first: int, count: int = 1) -> Any:
        """The statistics of a call for prompts from `first` on."""
        indices = range(first, first + count)
        seeds = [self.job.seed + n for n in indices]
        variant = self.bench.variant(method)
        run = variant.prepare(self.bench.inputs(indices), seeds, self.job.call)
        with timed_apart():
            return run().stats

    def trace(self, method: str, sample: int) -> Trace:
        """Record of what a method's drafter would have said along a plain output."""
        with recording() as trace:
            self.run(method, sample)
        return trace

    def rounds(self, method: str, first: int, count: int = 1) -> list[Round]:
        """The timed rounds of a call."""
        with rounds_of() as rounds:
            self.run(method, first, count)
        return rounds


def measure(job: Job, pipe: Any, samples: int, layer: int) -> SimulationRecord:
    """Record, measure, foretell the clock and simulate.

    Args:
        job: with `methods_of(layer)`, and one way to call.
        pipe: its pipeline.
        samples: prompts, an even number.
        layer: of the target, that tells what is likely in the middle of a call.
    """
    subject, layers = Subject(job, pipe), layers_of(pipe)
    record = SimulationRecord(environment(pipe.device), samples, layer, layers)
    costs, beside, seen = _time(subject, record)
    texts = [_text(subject, n, layer) for n in range(samples)]
    bits = [subject.run(BITS, n) for n in range(samples)]
    drafted = sum(sum(stats.judged_at) for stats in bits)
    record.stands = {
        "the draft model": float(np.mean([x for text in texts for x in text.stands])),
        "the target's high bits": sum(sum(stats.accepted) for stats in bits) / drafted,
    }
    ranks = np.concatenate([text.early for text in texts])
    record.foreseen = {k: float((ranks < k).mean()) for k in CANDIDATES}
    _foretell(record, texts[1::2], seen, costs, beside)
    for scale in SCALES if record.holds else ():
        scaled = replace(costs, scale=scale)
        for name, schedule in systems(layer / layers).items():
            ratios = [_seconds(t, plain, costs) / _seconds(t, schedule, scaled) for t in texts]
            record.speedups.setdefault(name, {})[scale] = ratio_interval(ratios)
        ratios = [_half_priced(stats, scaled) for stats in bits]
        record.speedups.setdefault(ELMOE, {})[scale] = ratio_interval(ratios)
    return record


def layers_of(pipe: Any) -> int:
    """Layers of a pipeline's target.

    Raises:
        InputError: it has none that can be left out.
    """
    network = getattr(pipe, "transformer", None)
    if network is not None:
        return len(network.layers)
    return int(pipe.model.config.get_text_config().num_hidden_layers)


@dataclass
class Likely:
    """Probability that a draft of each token of an output stands; see `Text`."""

    stands: list[float]
    early: Any
    limit: int

    sample: int

    def drawn(self, seed: int) -> Text:
        """The output with coins thrown."""
        coins = np.random.default_rng([self.sample, seed]).random(len(self.stands))
        return Text(coins < np.array(self.stands), self.limit, self.early)


def _text(subject: Subject, sample: int, layer: int) -> Likely:
    said, early = subject.trace(_draft(LENGTH), sample), subject.trace(_early(layer), sample)
    if said.tokens != early.tokens:
        raise InputError(f"prompt {sample}: the target's text differs from run to run")
    return Likely(said.stands, np.array(early.rank), said.limit, sample)


def _half_priced(stats: SpecStats, costs: Costs) -> float:
    """Speed-up of a run whose drafts cost half of what a call of the target does for one token.

    That is what half of the weights' bytes take where nothing else counts.
    """
    calls, tokens = sum(stats.calls), sum(stats.emitted)
    drafted = sum(stats.drafted)
    judging = calls * (costs.call(LENGTH) + costs.rest(LENGTH))
    seconds = costs.scale * HALF * costs.call(0) * drafted + judging
    return tokens * (costs.call(0) + costs.rest(0)) / seconds


def _time(subject: Subject, record: SimulationRecord) -> tuple[Costs, Costs, dict[str, float]]:
    """Costs of calls alone and of two processes at a time, and seconds a token of what ran.

    Prompts take turns, one for the costs and one for the clock, so that a machine which gets faster
    or slower does so for both.
    """
    alone, together = list[Round](), list[Round]()
    by_rows: dict[int, list[Round]] = {rows: [] for rows in ROWS}
    seen = {name: np.zeros(2) for name in CLOCKED}
    begins, begins_beside = list[float](), list[float]()
    for turn, n in enumerate([0, *range(0, record.samples, 2)]):  # the first warms up
        runs = {of: subject.rounds(of, n) for of in ("plain", *map(_draft, LENGTHS))}
        ahead = subject.rounds(_ahead(LENGTH), n)
        clocks = {name: subject.run(name, n + 1) for name in CLOCKED}
        batches = {rows: subject.rounds(_draft(LENGTH), n, rows) for rows in ROWS}
        if not turn:
            continue
        begins += [begins_later(rounds) for rounds in runs.values()]
        begins_beside.append(begins_later(ahead))
        alone += [one for rounds in runs.values() for one in rounds if not one.first]
        together += [one for one in ahead if not one.first]
        for rows, rounds in batches.items():
            by_rows[rows] += [r for r in rounds if r.width == LENGTH and not r.first]
        for name, stats in clocks.items():
            seen[name] += np.array([stats.loop_seconds, sum(stats.emitted)])
    if not together or not all(by_rows.values()):
        raise InputError(
            f"the answers to these prompts are too short to time drafts of {LENGTH} tokens; "
            "choose another suite"
        )
    times: dict[str, dict[int, list[float]]] = {
        "target": by_width(alone, lambda one: one.seconds["target"]),
        "rest of a round": by_width(alone, lambda one: one.after),
        "draft model": {rows: draft_calls(rounds) for rows, rounds in by_rows.items()},
        "target, beside a drafter": by_width(together, lambda one: one.seconds["target"]),
        # with what it takes to ask the drafter
        "rest, beside a drafter": by_width(together, lambda one: one.after + one.seconds["draft"]),
        "draft model, beside the target": {1: draft_calls_beside(together, LENGTH + 1)},
    }
    means = {
        kind: {n: float(np.mean(seconds)) for n, seconds in table.items()}
        for kind, table in times.items()
    }
    for kind, table in times.items():
        what = "rows" if kind.startswith("draft") else "drafted"
        for n, seconds in table.items():
            record.costs[f"{kind}, {n} {what}"] = 1e3 * means[kind][n]
            low, high = quartiles(seconds)
            record.quartiles[f"{kind}, {n} {what}"] = 1e3 * low, 1e3 * high
    for kind, more in (("more", begins), ("more, beside a drafter", begins_beside)):
        record.costs[f"first round, {kind}"] = 1e3 * float(np.mean(more))
        low, high = quartiles(more)
        record.quartiles[f"first round, {kind}"] = 1e3 * low, 1e3 * high
    target, after, draft, *beside = means.values()
    return (
        Costs(target, after, draft, float(np.mean(begins))),
        Costs(beside[0], beside[1], beside[2], float(np.mean(begins_beside))),
        {name: seconds / tokens for name, (seconds, tokens) in seen.items()},
    )


def _foretell(
    record: SimulationRecord,
    texts: Sequence[Likely],
    seen: Mapping[str, float],
    costs: Costs,
    beside: Costs,
) -> None:
    """Foretell the clock of what ran on `texts`, whose costs were not measured."""
    for name, schedule in CLOCKED.items():
        own = beside if name == _ahead(LENGTH) else costs
        told = sum(_seconds(text, schedule, own) for text in texts)
        record.clock[name] = seen[name], told / sum(len(text.stands) for text in texts)


def systems(part: float) -> dict[str, Schedule]:
    """Schedules that are simulated on the draft model's record, by name.

    Args:
        part: of the target's layers that have run when a middle one tells.
    """
    return {
        f"draft, {LENGTH} tokens, one device": drafting(LENGTH),
        f"PEARL, {LENGTH} tokens, two devices": drafting_ahead(LENGTH),
        **{
            f"Mirror-SD, {LENGTH} tokens, the {k} likeliest": mirrored(LENGTH, k, part)
            for k in (0, *CANDIDATES)
        },
    }


def _seconds(text: Likely, schedule: Schedule, costs: Costs) -> float:
    return float(np.mean([seconds_of(schedule, text.drawn(n), costs) for n in range(DRAWS)]))
