"""Who draws the rows of a report: methods, plain decoding called otherwise, and plain once more."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..methods import SpecConfig
from .methods import place, role
from .schema import MethodResult

if TYPE_CHECKING:
    from .run.job import Job

OTHERWISE = "plain:"  # begins the names of rows that no method has
AGAIN = "plain:again"
SHIFT = 1_000_000  # of seeds: more than a run has samples


@dataclass(frozen=True)
class Variant:
    """What a row's pictures are drawn by.

    Attributes:
        config: the method.
        call: arguments of its pipeline calls.
        shift: what is added to the seeds of other rows.
    """

    config: SpecConfig
    call: dict[str, Any]
    shift: int = 0


def arm_names(job: Job) -> list[str]:
    """The rows of a job: methods, then the sceptic's, then plain again."""
    again = [AGAIN] if job.suite.again else []
    return [*job.configs, *(OTHERWISE + name for name in job.suite.sceptics), *again]


def arm(job: Job, name: str) -> Variant:
    """The arm of a name of `arm_names`."""
    if name in job.configs:
        return Variant(job.configs[name], job.call)
    plain = SpecConfig(method="plain")
    if name == AGAIN:
        return Variant(plain, job.call, shift(name))
    return Variant(plain, {**job.call, **job.suite.sceptics[name.removeprefix(OTHERWISE)]})


def shift(name: str) -> int:
    """What is added to the seeds of the row of a name of `arm_names`."""
    return SHIFT if name == AGAIN else 0


def label(job: Job, name: str, row: MethodResult) -> None:
    """Say in a row what it is, and its family."""
    if name in job.configs:
        row.role = role(name, job.configs[name])
        row.family, row.knob, row.knob_value = place(job.configs[name])
        return
    row.family, row.role = name, "again" if name == AGAIN else "sceptic"
    if row.role == "sceptic":
        row.contract = "lossy"  # plain it is, but of another law
