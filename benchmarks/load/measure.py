"""Calls by length "auto" beside plain ones of the same prompts, by batch size."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mmspec.eval.measure.bootstrap import FEWEST_PAIRS, Interval, ratio_interval
from mmspec.eval.measure.timing import Sample, rotated, timed
from mmspec.methods import Modality, SpecConfig
from mmspec.pipelines.load_switch import AUTO, automatic
from mmspec.pipelines.notices import timed_apart

BATCHES = (1, 2, 4, 8, 16, 32)
ENOUGH = 0.97  # times plain decoding, that "auto" is to reach at least
PLAIN, USUAL = "plain", "usual"


@dataclass
class AtSize:
    """Calls of one batch size.

    Attributes:
        speedup: units a second of all calls, over plain decoding's.
        median, ci95: of the calls' own ratios; the interval is None of too few.
        first: the first call's, in which nothing is known of so many rows.
        plain_calls: share of calls that "auto" left plain as a whole.
        plain_rounds: share of rounds without drafts, of all its calls.
    """

    speedup: float
    median: float
    ci95: Interval | None
    first: float
    plain_calls: float
    plain_rounds: float

    @property
    def holds(self) -> bool:
        """True if it is no slower than it may be."""
        return self.speedup >= ENOUGH


@dataclass
class OfModality:
    """Calls of one modality's pipeline by batch size, and its method."""

    method: str
    contract: str
    unit: str
    sizes: dict[int, AtSize] = field(default_factory=dict)


@dataclass
class LoadRecord:
    """Measurement of "auto" by load.

    Attributes:
        environment: of the run.
        turns: calls of either kind, of each modality and batch size.
        modalities: by name.
    """

    environment: dict[str, Any]
    turns: int
    seed: int
    modalities: dict[str, OfModality] = field(default_factory=dict)


def configs_of(pipe: Any, modality: Modality) -> dict[str, SpecConfig]:
    """Methods that take turns: plain decoding, and the pipeline's default with length "auto".

    A default that is lossy has no such length by itself, and is given it here.
    """
    pipe.enable_speculation()
    own = SpecConfig(pipe.speculation.method)
    made = automatic(own, modality)
    return with_usual(own.replace(length=AUTO) if made == own else made)


def with_usual(auto: SpecConfig) -> dict[str, SpecConfig]:
    """Methods by name, for one with length "auto"; its usual drafts warm up."""
    return {PLAIN: SpecConfig(PLAIN), AUTO: auto, USUAL: auto.replace(length=None)}


def measure_load(
    bench: Any,
    method: SpecConfig,
    batches: Sequence[int],
    turns: int,
    unit: str,
    done: Callable[[], object] = lambda: None,
) -> OfModality:
    """Let "auto" and plain decoding take turns on the same prompts, from small batches to large.

    Before that plain decoding and the usual drafts are called twice with one prompt, so that what
    is loaded and built once is there. "auto" has not run by then: its first calls, in which it
    finds out, count like the others.

    Args:
        bench: of a job whose configurations are `configs_of`.
        method: that of "auto".
        batches: sizes.
        turns: of each size.
        unit: what its counters count.
        done: called after every call.
    """
    resolved = method.resolve(bench.pipe.modality)
    found = OfModality(resolved.method, resolved.contract, unit)
    for name in (PLAIN, USUAL) * 2:
        seeded = bench.variant(name).prepare(bench.inputs(range(1)), [0], bench.job.call)
        with timed_apart():
            seeded()
        done()
    for rows in batches:
        pairs = []
        for turn in range(turns):
            samples = range(turn * rows, (turn + 1) * rows)
            pair = {}
            for name in rotated((PLAIN, AUTO), turn):
                pair[name] = _timed(bench, name, samples)
                done()
            pairs.append(pair)
        found.sizes[rows] = summed(pairs)
    return found


def steps(batches: Sequence[int], turns: int) -> int:
    """Calls of `measure_load`."""
    return 4 + 2 * turns * len(batches)


def _timed(bench: Any, name: str, samples: range) -> Sample:
    seeds = [bench.job.seed + number for number in samples]
    call = bench.variant(name).prepare(bench.inputs(samples), seeds, bench.job.call)
    with timed_apart():
        return timed(bench.pipe.device, "", seeds[0], call)


def summed(pairs: Sequence[Mapping[str, Sample]]) -> AtSize:
    """Ratios of paired calls: units a second by "auto", over those of plain decoding."""
    ratios = [_rate([pair[AUTO]]) / _rate([pair[PLAIN]]) for pair in pairs]
    auto = [pair[AUTO] for pair in pairs]
    median, spread = ratio_interval(ratios)
    rounds = sum(len(one.stats.rounds) for one in auto)
    return AtSize(
        _rate(auto) / _rate([pair[PLAIN] for pair in pairs]),
        median,
        spread if len(ratios) >= FEWEST_PAIRS else None,
        ratios[0],
        sum(one.stats.method == PLAIN for one in auto) / len(auto),
        sum(one.stats.alone for one in auto) / max(1, rounds),
    )


def _rate(samples: Sequence[Sample]) -> float:
    units = sum(sum(one.stats.emitted) for one in samples)
    return units / sum(one.seconds for one in samples)
