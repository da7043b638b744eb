"""Does a run's units with one pipeline: every row's outputs, in turn, timed and judged."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ...errors import InputError
from ..environment import dtype_name, environment
from ..measure.speed import WARMUP, speed_line
from ..measure.timing import Sample, rotated, timed
from ..run.job import Job, Outcome, Unit
from ..run.samples import Line
from ..variants import RefusedError, Variant, shift

Judged = tuple[dict[str, float], str]  # scores by metric, and why they are low


class Bench(ABC):
    """Does units, and holds whatever judges the outputs.

    Args:
        job: what is measured.
        pipe: where; its own method stays as it is.

    Attributes:
        judges_timed: whether outputs that are timed alone are judged too.
    """

    judges_timed = False

    def __init__(self, job: Job, pipe: Any) -> None:
        self.job, self.pipe = job, pipe
        self._warm: set[int] = set()
        self._variants: dict[str, Variant] = {}

    @abstractmethod
    def make_variant(self, name: str) -> Variant:
        """The variant of a name, with all that it needs."""

    @abstractmethod
    def inputs(self, indices: range) -> Any:
        """Some samples, as variants take them."""

    @abstractmethod
    def judged(self, items: Sequence[Any], out: Any) -> list[Judged]:
        """Scores of every output of a call, and what is wrong with it; `items` were asked for."""

    @abstractmethod
    def shown(self, outcome: Outcome, name: str, row: int, inputs: Any, out: Any) -> Line:
        """Fields to add to a row's line of a call; its files join the outcome."""

    def entropy(self, indices: range) -> float | None:
        """Mean entropy of the target's laws on some samples; None: it has none that are counted."""
        return None

    def resolution(self) -> str | None:
        """Size of pictures, down and across; None: they may be of any."""
        return None

    def bare(self, name: str, sample: Sample) -> Line:
        """Fields of a timed line for the bare forward passes behind it, where they are measured."""
        return {}

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole.

        Raises:
            InputError: one of its samples can't be made; they are named.
        """
        outcome = Outcome(unit, [])
        try:
            getattr(self, unit.kind)(outcome)
        except InputError as error:
            last = unit.indices[-1]
            which = f"samples {unit.first} to {last}" if unit.count > 1 else f"sample {unit.first}"
            raise InputError(f"{which}: {error}") from error
        return outcome

    def target(self, outcome: Outcome) -> None:
        """Tell how open the target's laws are, and where this is."""
        machine = {**environment(self.pipe.device), "dtype": dtype_name(self.pipe.dtype)}
        if (resolution := self.resolution()) is not None:
            machine["resolution"] = resolution
        told = {"entropy": self.entropy(outcome.unit.indices), "samples": outcome.unit.count}
        outcome.lines.append({"kind": "target", **told, "environment": machine})

    def speed(self, outcome: Outcome) -> None:
        """Time a sample, or a batch, by every row in turn; the first of a size is warmed up for."""
        unit = outcome.unit
        inputs = self.inputs(unit.indices)
        for _ in range(0 if unit.size in self._warm else WARMUP):
            list(self._in_turn(unit, inputs))
        self._warm.add(unit.size)
        for name, sample in list(self._in_turn(unit, inputs)):
            if isinstance(sample, RefusedError):
                outcome.lines.append(_refused(name, sample))
                continue
            outcome.lines.append(speed_line(unit, name, sample) | self.bare(name, sample))
            if self.judges_timed and unit.count == 1:
                self._judge(outcome, name, inputs, sample.output)

    def quality(self, outcome: Outcome) -> None:
        """Judge a batch by one row.

        A row of a batch is the output that it would be alone, so the batch matters to time only:
        times are not paired here and no speed-up is given.
        """
        name, inputs = outcome.unit.method, self.inputs(outcome.unit.indices)
        try:
            out = self._prepare(name, outcome.unit, inputs)()
        except RefusedError as error:
            outcome.lines.append(_refused(name, error))
        else:
            self._judge(outcome, name, inputs, out)

    def variant(self, name: str) -> Variant:
        """The variant of a row's name."""
        own = name.partition("@")[0]
        if own not in self._variants:
            self._variants[own] = self.make_variant(own)
        return self._variants[own]

    def _prepare(self, name: str, unit: Unit, inputs: Any) -> Any:
        """Function that makes a row's outputs."""
        seeds = [self.job.seed + shift(name) + index for index in unit.indices]
        call = self.job.calls[name.partition("@")[2]]
        if unit.at_once is not None:
            call = {**call, "batch_size": unit.at_once}
        return self.variant(name).prepare(inputs, seeds, call)

    def _in_turn(self, unit: Unit, inputs: Any) -> Iterator[tuple[str, Sample | RefusedError]]:
        """Time each row, in the order of the unit's turn."""
        texts = [self.job.prompt(index).prompt for index in unit.indices]
        prompt = texts[0] if unit.count == 1 else texts
        for names in self.job.groups.values():
            for name in rotated(names, unit.first // unit.count):
                if unit.count > 1 and getattr(self.variant(name), "alone", False):
                    continue
                run = self._prepare(name, unit, inputs)
                first = self.job.seed + shift(name) + unit.first
                try:
                    yield name, timed(self.pipe.device, prompt, first, run)
                except RefusedError as error:
                    yield name, error

    def _judge(self, outcome: Outcome, name: str, inputs: Any, out: Any) -> None:
        """Add the lines of a row's outputs for the samples of a unit."""
        indices = outcome.unit.indices
        items = [self.job.prompt(index) for index in indices]
        found = self.judged(items, out)
        samples = zip(indices, items, found, strict=True)
        for row, (index, item, (scores, reason)) in enumerate(samples):
            outcome.lines.append(
                {
                    "kind": "quality",
                    "method": name,
                    "index": index,
                    "prompt": item.prompt,
                    "tag": item.tag,
                    "seed": self.job.seed + shift(name) + index,
                    "scores": scores,
                    "reason": reason,
                    **out.stats.of_sample(row),
                    **self.shown(outcome, name, row, inputs, out),
                }
            )
        if self.job.suite.quality:  # timed outputs alone are counted in their own lines
            outcome.lines.append({"kind": "counts", "method": name, "stats": asdict(out.stats)})


def _refused(name: str, error: RefusedError) -> Line:
    """The line of a row that is left out, and why."""
    return {"kind": "refused", "method": name, "reason": str(error)}
