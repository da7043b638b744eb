"""Job of a run, in a form that can travel to other processes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from ...errors import InputError
from ...methods import SpecConfig
from ..measure.bootstrap import FEWEST_PAIRS
from ..modalities.base import PromptItem, modality
from ..suite import Suite
from ..variants import row_name
from .samples import Line

QUALITY_BATCH = 24  # rows of a quality call
TURNS = 3  # prompts of a closed loop for each that runs at a time


@dataclass(frozen=True)
class Job:
    """Everything a worker has to know.

    Attributes:
        suite: what is measured.
        prompts: of the suite, or the user's.
        configs: methods by name, "plain" first.
        call: arguments of every pipeline call; the suite may have several ways to call beside them.
        seed: sample k has seed `seed + k` and prompt k modulo their number, in every method.
        model: pipeline folder or hub id; None: the embedded model.
        device: where it runs.
        device_map: how accelerate spreads a target over several devices; None: it doesn't.
        files: of the user's, by name: weights of judges and rewards, the reference's folder, the
            prompts.
        threads: of the processor's arithmetic; with others, sums round differently.
    """

    suite: Suite
    prompts: tuple[PromptItem, ...]
    configs: dict[str, SpecConfig]
    call: dict[str, Any]
    seed: int = 0
    model: str | None = None
    device: str = "cpu"
    device_map: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    threads: int = 1

    @cached_property
    def groups(self) -> dict[str, list[str]]:
        """Names of rows by way to call; rows are compared within it, with the first of them."""
        names = modality(self.suite.pipeline).variants(self)
        return {call: [row_name(name, call) for name in names] for call in self.calls}

    @property
    def rows(self) -> list[str]:
        """The names of the report's rows."""
        return [name for names in self.groups.values() for name in names]

    @property
    def calls(self) -> dict[str, dict[str, Any]]:
        """Arguments of pipeline calls by name; a suite that has one way to call has one, ""."""
        ways = self.suite.calls or {"": {}}
        return {name: {**self.call, **own} for name, own in ways.items()}

    def file(self, name: str, what: str) -> Path:
        """A file that the suite can't do without."""
        if name not in self.files:
            raise InputError(f"suite {self.suite.name} needs --weights {name}=PATH: {what}")
        return Path(self.files[name])

    def prompt(self, index: int) -> Any:
        """The item of a sample, of the modality's own kind."""
        return self.prompts[index % len(self.prompts)]


@dataclass(frozen=True)
class Unit:
    """A piece of work that is done whole or not at all.

    Attributes:
        kind: "target": what the target's laws are like; "variation": what a method's rule makes of
            them; "speed": one batch by every method in turn; "quality": one batch by one method.
        first, count: its samples.
        method: the one that works, where it is one.
        at_once: samples that run at a time, in a closed loop; None: all.
    """

    kind: Literal["target", "variation", "speed", "quality"]
    first: int = 0
    count: int = 1
    method: str = ""
    at_once: int | None = None

    @property
    def size(self) -> int:
        """Samples that run at a time."""
        return self.at_once or self.count

    @property
    def indices(self) -> range:
        """Indices of its samples."""
        return range(self.first, self.first + self.count)

    @property
    def key(self) -> str:
        """Its name in the log of samples."""
        loop = "" if self.at_once is None else f"/{self.at_once}"
        return f"{self.kind}/{self.method}/{self.first}+{self.count}{loop}"

    def samples(self, job: Job) -> int:
        """Outputs that it makes and counts."""
        if self.kind == "quality":
            return self.count
        return self.count * len(job.rows) if self.kind == "speed" else 0


@dataclass
class Outcome:
    """Outcome of a unit: lines of the log, and files by their place in the run's folder."""

    unit: Unit
    lines: list[Line]
    files: dict[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Extent of a job.

    Attributes:
        speed, quality: prompts and samples; `most`: to which undecided samples may rise.
        batches: sizes whose speed is measured.
        closed_loop: they are served from a queue.
        limited: cut short by the user, so not for reporting.
    """

    speed: int
    quality: int
    most: int
    batches: tuple[int, ...] = (1,)
    closed_loop: bool = False
    limited: bool = False

    def speed_units(self) -> list[Unit]:
        """The speed measurement: every prompt alone, and once more in batches of other sizes.

        Batches too large for an interval of the prompts have them again, with other seeds.
        """
        units = []
        for size in self.batches if self.speed else ():
            at_once = size if self.closed_loop and size > 1 else None
            held = size if at_once is None else TURNS * size
            count = max(self.speed // held, min(self.speed, FEWEST_PAIRS))
            for first in range(0, count * held, held):
                units.append(Unit("speed", first, held, at_once=at_once))
        return units


def plan(
    job: Job, limit: int | None, most: int | None = None, batches: tuple[int, ...] = (1,)
) -> Plan:
    """Plan of a suite, at most `limit` of either.

    Args:
        most: samples up to which a comparison goes on that the margin leaves undecided.
    """
    suite = job.suite
    quality = suite.quality
    if suite.images_per_prompt > 1:
        quality = min(quality, suite.images_per_prompt * len(job.prompts))
    speed = min(suite.speed, len(job.prompts))
    if batches != (1,) and not suite.speed:
        raise InputError(f"suite {suite.name} measures no speed: leave --batch-sizes out")
    if most is not None and suite.margin is None:
        raise InputError(f"suite {suite.name} has no margin to decide: leave --max-samples out")
    whole = speed, quality
    if limit is not None:
        speed, quality = min(speed, limit), min(quality, limit)
    limited = (speed, quality) != whole
    sizes = (1, *batches[1:])
    return Plan(speed, quality, max(quality, most or 0), sizes, suite.closed_loop, limited)


def quality_units(
    methods: Iterable[str], last: int, drawn: Mapping[str, Collection[int]]
) -> Iterator[Unit]:
    """Samples 0 to `last` by every method; methods take turns, batch by batch.

    Args:
        drawn: samples that each method has already, whatever the batches that they came in.
    """
    for start in range(0, last, QUALITY_BATCH):
        for method in methods:
            done = drawn.get(method, ())
            missing = [i for i in range(start, min(start + QUALITY_BATCH, last)) if i not in done]
            ends = [i for i in missing if i + 1 not in missing]
            for first, end in zip((i for i in missing if i - 1 not in missing), ends, strict=True):
                yield Unit("quality", first, end - first + 1, method)
