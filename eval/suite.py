"""Suites: what is judged, on which prompts, by which metrics; a YAML file each."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from .. import assets
from ..errors import InputError, absent
from ..files import read_text, to_loose_json
from ..registry import check_name
from .judges.base import JUDGES
from .metrics.base import Metric
from .metrics.registry import metrics_for, metrics_of
from .modalities.base import MODALITIES, OPTIONS
from .strict import STRICT, read_as

SUITES = Path(__file__).resolve().parent / "suites"
PROMPTS = Path(assets.__file__).resolve().parent / "prompts"

Source = Literal["prompts", "images", "answers", "videos"]


@dataclass(frozen=True)
class Suite:
    """A suite file.

    Attributes:
        name: of the file.
        summary: for `mmspec eval ls`.
        source: where the samples come from: a pipeline that draws from "prompts", or "images",
            "answers" and "videos" that the user has.
        metrics: the first one is the suite's own; verdicts are about it.
        pipeline: the modality that draws or answers.
        prompts: file in `assets/prompts`, or several; none: the user gives one.
        judge: who answers GenEval's question, a name of `eval.judges`, such as "shapes", that
            world's detector.
        reference: what sets are compared with: "shapes" renders scenes of the same prompts; None:
            the user's folder.
        call: keyword arguments of every pipeline call.
        calls: several ways to call, each with arguments of its own beside those; every method is a
            row in each of them. Empty: one way.
        peers: transformers' own generation on the same models is measured too.
        blank: every drafter that sees is measured too while it is shown a grey picture.
        sceptics: plain decoding with other arguments, by name: rows that methods have to beat.
        again: plain is a row once more, with other seeds: how far figures move by themselves. Sets
            of pictures are compared with its own too.
        verdict: Speculative Verdict is measured too, and each of its experts alone, where there are
            experts.
        speed: prompts of the speed measurement; 0: none.
        batches: sizes whose speed is measured beside single prompts, unless the user says.
        closed_loop: batches are served from a queue: as soon as one of so many prompts is done,
            the next takes its place.
        quality: samples that are judged; 0: none.
        images_per_prompt: in a suite of the user's prompts, samples of each.
        margin: loss against plain that is still called small, in the first metric's unit.
    """

    __pydantic_config__ = STRICT

    name: str
    summary: str
    source: Source
    metrics: tuple[str, ...] = ()
    pipeline: str = "image"
    prompts: tuple[str, ...] = ()
    judge: str = "shapes"
    reference: Literal["shapes"] | None = None
    call: dict[str, Any] = field(default_factory=dict)
    calls: dict[str, dict[str, Any]] = field(default_factory=dict)
    sceptics: dict[str, dict[str, Any]] = field(default_factory=dict)
    again: bool = False
    peers: bool = False
    blank: bool = False
    verdict: bool = False
    speed: int = 0
    batches: tuple[int, ...] = ()
    closed_loop: bool = False
    quality: int = 0
    images_per_prompt: int = 1
    margin: float | None = None

    def __post_init__(self) -> None:
        where = f"suite {self.name}"
        check_name(f"{where}: pipeline", self.pipeline, MODALITIES)
        check_name(f"{where}: judge", self.judge, JUDGES.names())
        for metric in self.metrics:
            check_name(f"{where}: metric", metric, self._known())
        for name in ("speed", "quality", "images_per_prompt"):
            if getattr(self, name) < 0:
                raise InputError(f"{where}: {name} must be 0 or more, not {getattr(self, name)}")
        if not all(size > 0 for size in self.batches):
            raise InputError(f"{where}: batches must be 1 or more, not {list(self.batches)}")
        if self.margin is not None and not self.margin > 0:
            raise InputError(f"{where}: margin must be above 0, not {self.margin}")
        if self.margin is not None and not (self.metrics and self.declared[0].single):
            raise InputError(f"{where}: a margin is for a first metric of single pictures")
        if self.source == "prompts" and not (self.speed or self.quality):
            raise InputError(f"{where}: says neither speed nor quality: nothing to measure")
        if self.quality and self.calls:
            raise InputError(f"{where}: several calls are for speed; quality has one")
        if (self.quality or self.source != "prompts") and not self.metrics:
            raise InputError(f"{where}: quality without metrics")
        for name in self.prompts:
            if not (PROMPTS / name).is_file():
                raise InputError(f"{where}: no prompts {name} in {PROMPTS}")
        for name in OPTIONS:
            if getattr(self, name) and name not in MODALITIES[self.pipeline].options:
                raise InputError(f"{where}: {name} is not for pipeline {self.pipeline}")
        if "again" in self.sceptics:
            raise InputError(f"{where}: plain again is no row of the sceptic's: say again: true")
        for name in (*self.calls, *self.sceptics):
            if not re.fullmatch(r"[a-z0-9-]+", name):
                raise InputError(f"{where}: a way to call has a name of a-z, 0-9, -, not {name!r}")
        # better said now than after an hour
        for call in (self.call, *self.calls.values(), *self.sceptics.values()):
            for name in call if self.source == "prompts" else ():
                taken = sorted(MODALITIES[self.pipeline].arguments)
                check_name(f"{where}: call argument", name, taken)

    @property
    def decides(self) -> tuple[str, float] | None:
        """The metric that verdicts are about, and its margin."""
        return None if self.margin is None else (self.metrics[0], self.margin)

    @property
    def declared(self) -> tuple[Metric, ...]:
        """The metrics as they declare themselves."""
        known = self._known()
        return tuple(known[name] for name in self.metrics)

    def _known(self) -> dict[str, Metric]:
        if self.source == "prompts":
            return metrics_of(*MODALITIES[self.pipeline].metrics)
        return metrics_for(self.source)


def suite_names() -> list[str]:
    """The names of the suites that come with the package."""
    return [path.stem for path in sorted(SUITES.glob("*.yaml"))]


def load_suite(name: str) -> Suite:
    """A suite by name, or from a YAML file of the user's.

    Raises:
        InputError: there is none of that name, or a field is missing, unknown or out of range.
    """
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
    else:
        check_name("suite", name, suite_names())
        path = SUITES / f"{name}.yaml"
    data = _read_yaml(path)
    if not isinstance(data, dict):
        raise InputError(f"suite {path} holds no fields")
    known = [f.name for f in fields(Suite) if f.name != "name"]
    for key in data:
        check_name(f"suite {path}: field", str(key), known)
    if isinstance(data.get("prompts"), str):
        data["prompts"] = [data["prompts"]]
    try:  # JSON has lists for tuples; values that it lacks are texts
        text = to_loose_json({**data, "name": path.stem})
    except TypeError as error:
        raise InputError(f"suite {path}: {error}") from error
    return read_as(Suite, text, f"suite {path}")


def _read_yaml(path: Path) -> Any:
    """What a YAML file says; dates are texts."""
    try:
        import yaml
    except ImportError as error:
        raise absent("suites need PyYAML", "eval") from error

    # a reader of its own: other packages change what the shared one makes of a date
    loader: Any = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor("tag:yaml.org,2002:timestamp", loader.construct_yaml_str)
    text = read_text(path)
    try:
        return yaml.load(text, loader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise InputError(f"can't read suite {path}: {reason}") from error
