"""The seam between a run, which knows of units and folders, and what a modality does in them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...config import SpecConfig
from ...errors import InputError
from ...methods import Modality as Name
from ...methods import serving
from ...registry import Registry
from ..methods import parse_methods

if TYPE_CHECKING:
    from ..metrics.base import Metric
    from ..run.job import Job, Outcome, Plan, Unit
    from ..run.run_folder import RunFolder
    from ..schema import MethodResult
    from ..suite import Suite


class PromptItem(Protocol):
    """What one sample is made of: a prompt, or a question about a picture.

    Attributes:
        prompt: what is asked for.
        tag: the part of the suite that it belongs to.
    """

    @property
    def prompt(self) -> str: ...

    @property
    def tag(self) -> str: ...

    def metadata(self) -> dict[str, Any]:
        """All that its samples depend on; JSON."""


class Bench(Protocol):
    """Does units with one pipeline, and holds whatever judges the outputs."""

    def run(self, unit: Unit) -> Outcome:
        """A unit, whole."""


@dataclass
class Findings:
    """What a run's lines say.

    Attributes:
        rows: of the report, by name.
        notes: what a reader must know.
        costs: seconds of bare forward passes, see `Report`.
        settings: numbers of prompts, calls and samples.
    """

    rows: dict[str, MethodResult]
    notes: list[str] = field(default_factory=list)
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


OPTIONS = ("calls", "sceptics", "again", "peers", "blank", "verdict")


class Modality(Protocol):
    """What a modality knows of measuring itself.

    Attributes:
        metric_kinds: classes of the metrics that its suites may name.
        options: fields of a suite that it serves, of those that not all do: `OPTIONS`.
    """

    metric_kinds: tuple[type[Metric], ...]
    options: tuple[str, ...]

    def arguments(self) -> set[str]:
        """Keyword arguments of a pipeline call that a suite may set."""

    def items(self, suite: Suite, path: Path | None) -> tuple[PromptItem, ...]:
        """The items of a suite, or the user's own.

        Raises:
            InputError: there is no file, or a line of it is no item.
        """

    def open(self, model: str | None, device: str, device_map: str | None) -> Any:
        """A pipeline; None: the embedded model's.

        Raises:
            InputError: it can't be loaded.
        """

    def methods(self, pipe: Any, call: dict[str, Any]) -> tuple[str, ...]:
        """What is measured where nobody chooses.

        Args:
            pipe: the pipeline; None: it is loaded elsewhere.
            call: arguments of its calls.
        """

    def check(self, job: Job, todo: Plan, pipe: Any) -> None:
        """Raise an `InputError` if the job can't be done; before any work.

        Args:
            pipe: the job's pipeline; None: it is loaded elsewhere.
        """

    def rows(self, job: Job) -> list[str]:
        """The names of the report's rows, the baseline first."""

    def first(self, job: Job) -> list[Unit]:
        """Units that come before speed and quality."""

    def bench(self, job: Job, pipe: Any) -> Bench:
        """Who does the units of a job."""

    def findings(self, job: Job, todo: Plan, folder: RunFolder) -> Findings:
        """The rows of the report, from the run's folder."""


MODALITIES = Registry(
    "pipeline",
    {
        "image": "mmspec.eval.modalities.image:ImageModality",
        "vlm": "mmspec.eval.modalities.vlm:VlmModality",
        "continuous": "mmspec.eval.modalities.continuous:ContinuousModality",
        "video": "mmspec.eval.modalities.video:VideoModality",
    },
)


def modality(name: str) -> Modality:
    """The modality called `name`."""
    made: Modality = MODALITIES.get(name)()
    return made


def runnable(modality: Name, check: Callable[[SpecConfig], None] | None) -> tuple[str, ...]:
    """The methods of a modality that a check lets pass.

    Args:
        check: raises an `InputError` for a configuration that the pipeline can't run; None: the
            pipeline is loaded elsewhere.
    """
    if check is None:
        raise InputError("say which --methods to measure: what can run is known to workers only")
    found = []
    for name, config in parse_methods(tuple(serving(modality))).items():
        try:
            check(config)
        except InputError:
            continue
        found.append(name)
    return tuple(found)
