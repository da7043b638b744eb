"""Variants that make a report's rows: methods, plain called otherwise, plain again.

A row's name is its variant's, and behind an "@" the way to call, in a suite that has several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ..errors import InputError
from ..methods import SpecConfig
from .schema import MethodResult
from .sweeps import place, role

if TYPE_CHECKING:
    from .run.job import Job

PLAIN = "plain"
OTHERWISE = "plain:"  # begins the names of variants that no method has
AGAIN = "plain:again"
SHIFT = 1_000_000  # of seeds: more than a run has samples


class RefusedError(InputError):
    """A variant can't do what it is asked; its row is left out."""


class Variant(Protocol):
    """Makes the outputs of a row.

    Variants that take one sample at a time say so by a true `alone`: they have no row in batches.
    """

    def prepare(
        self, inputs: Any, seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Any]:
        """Prepare the timed function that makes outputs of some samples; its result has `stats`.

        Args:
            inputs: the samples, as the modality's pipeline takes them.
            seeds: one a sample.
            call: arguments of the pipeline's call.
        """


@dataclass(frozen=True)
class MethodVariant:
    """A method on a pipeline that others use too, see `unchanged`.

    Attributes:
        own: arguments of its pipeline calls in place of the other rows'.
    """

    pipe: Any
    config: SpecConfig
    own: Mapping[str, Any] = field(default_factory=dict)

    def prepare(
        self, inputs: Any, seeds: Sequence[int], call: Mapping[str, Any]
    ) -> Callable[[], Any]:
        self.pipe.enable_speculation(self.config)
        generators = [torch.Generator().manual_seed(seed) for seed in seeds]
        return partial(self.pipe, inputs, generator=generators, **{**call, **self.own})


@contextmanager
def unchanged(pipe: Any) -> Iterator[None]:
    """Put a pipeline's own method back at the end."""
    before = pipe.speculation
    try:
        yield
    finally:
        pipe.enable_speculation(before)


def variant_names(job: Job) -> list[str]:
    """The variants of a job: methods, then the sceptic's, then plain again."""
    again = [AGAIN] if job.suite.again else []
    return [*job.configs, *(OTHERWISE + name for name in job.suite.sceptics), *again]


def method_variant(job: Job, name: str, pipe: Any) -> MethodVariant:
    """The variant of a name of `variant_names`.

    Raises:
        KeyError: a job has no variant of that name.
    """
    if not name.startswith(OTHERWISE):
        return MethodVariant(pipe, job.configs[name])
    own = job.suite.sceptics.get(name.removeprefix(OTHERWISE), {})
    return MethodVariant(pipe, SpecConfig(method=PLAIN), own)


def row_name(variant: str, call: str) -> str:
    """Name of a variant's row in a way to call."""
    return f"{variant}@{call}" if call else variant


def shift(name: str) -> int:
    """Offset added to the seeds of the row of a name."""
    return SHIFT if name == AGAIN else 0


def label(job: Job, name: str, row: MethodResult) -> None:
    """Say in a row what it is, and its family."""
    variant, _, call = name.partition("@")
    row.family, row.call = name, call
    if variant in job.configs:
        row.role = role(variant, job.configs[variant])
        family, row.knob, row.knob_value = place(job.configs[variant])
        row.family = row_name(family, call)
    elif name == AGAIN:
        row.role = "again"
    elif name.startswith(OTHERWISE):
        row.role, row.contract = "sceptic", "lossy"  # plain it is, but of another law
