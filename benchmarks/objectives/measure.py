"""Heads that are trained by one objective each, and how far their drafts are accepted."""

from __future__ import annotations

import filecmp
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import Interval, known_interval
from mmspec.files import read_object
from mmspec.models.heads.loading import load_head
from mmspec.registry import check_name, resolve
from mmspec.train.heads.recipe import HeadRecipe
from mmspec.train.recipes import STAGES, train
from mmspec.train.trainer import TrainConfig

BASELINE = "kl"
REFERENCE = "first"  # name of a head's reference in its folder
TEMPERATURES = {"greedy": 0.0, "sampled": 1.0}

Counts = Mapping[str, npt.NDArray[np.float64]]  # by counter, [n] of the prompts


@dataclass
class Accepted:
    """Drafts of a head for held-out prompts, real generations by chains.

    Attributes:
        tokens_per_call: tokens that a call of the target emits, its own among them.
        tokens_per_call_ci95: by resampling the prompts.
        gain: its distance from the baseline's.
        gain_ci95: by resampling the prompts, the same ones for both.
        acceptance: share of drafted tokens that stood.
        acceptance_ci95: by resampling the prompts.
        by_position: rates at which the n-th drafted token stood if those before it did.
    """

    tokens_per_call: float
    tokens_per_call_ci95: Interval | None
    gain: float
    gain_ci95: Interval | None
    acceptance: float
    acceptance_ci95: Interval | None
    by_position: list[float]


@dataclass
class Learned:
    """A head.

    Attributes:
        objective: its loss on laws.
        steps: of its training; those of its reference are apart.
        reference_steps: of the training of its reference; 0: it has none.
        minutes: of its training, answers that the target wrote for it included.
        greedy, sampled: at temperature 0, and 1.
    """

    objective: str
    steps: int
    reference_steps: int
    minutes: float
    greedy: Accepted
    sampled: Accepted


@dataclass
class ObjectivesRecord:
    """Contents of `objectives.json`.

    Attributes:
        prompts: held-out ones.
        given: options of the trainings that are not the recipe's own.
    """

    model: str
    method: str
    steps: int
    prompts: int
    given: dict[str, Any]
    environment: dict[str, Any]
    heads: dict[str, Learned] = field(default_factory=dict)


def counts_of(stats: SpecStats) -> dict[str, npt.NDArray[np.float64]]:
    """Counters of each prompt `[n]`."""
    named = "emitted", "calls", "accepted", "drafted"
    return {name: np.array(getattr(stats, name), dtype=np.float64) for name in named}


def accepted_of(stats: SpecStats, baseline: SpecStats) -> Accepted:
    """Figures of a head's drafts beside those of the baseline's for the same prompts."""
    own, first = counts_of(stats), counts_of(baseline)
    n = len(own["calls"])
    whole = np.arange(n)[None]

    def share(found: Counts, above: str, below: str, i: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.asarray(found[above][i].sum(1) / np.maximum(found[below][i].sum(1), 1))

    def tokens(i: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return share(own, "emitted", "calls", i)

    def gain(i: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return tokens(i) - share(first, "emitted", "calls", i)

    def acceptance(i: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return share(own, "accepted", "drafted", i)

    figures = [(float(of(whole)[0]), known_interval(of, n)) for of in (tokens, gain, acceptance)]
    (told, told_ci), (more, more_ci), (stood, stood_ci) = figures
    by_position = stats.acceptance_by_position
    return Accepted(told, told_ci, more, more_ci, stood, stood_ci, by_position)


class Comparison:
    """Heads of one kind over one model, trained by several objectives.

    Each has a folder `trained/NAME` of the output. All begin with the same weights and learn from
    the same answers; a language model's lie in `lessons`. The pipeline's folder stays as it is.

    Args:
        pipeline: folder of the model.
        out: folder that is written.
        method: kind of head.
        steps: of a training.
        given: other options of `mmspec train`.

    Raises:
        InputError: the model has no such head.
    """

    def __init__(
        self, pipeline: Path, out: Path, method: str, steps: int, given: Mapping[str, Any]
    ) -> None:
        sees = "vision_config" in read_object(pipeline / "config.json")
        self.recipe = "vlm-head" if sees else "text-head"
        check_name("head", method, STAGES[self.recipe])
        self.pipeline, self.out, self.method = pipeline.resolve(), out.resolve(), method
        self.steps, self.given = steps, dict(given)
        self.model = self.out / "model"

    def run(self, objectives: Sequence[str]) -> ObjectivesRecord:
        """Train and judge the heads.

        These are one by each objective, the baseline by cross-entropy; one that learns beside that
        one at some places alone (AdaSPEC); and what a sceptic asks for: twice the steps in place
        of a reference.

        Raises:
            InputError: the output holds heads of another model or of other options.
        """
        files = [path.resolve() for path in self.pipeline.iterdir() if path.is_file()]
        _joined(files, self.model)
        for file in files:
            if not filecmp.cmp(file, self.model / file.name, shallow=False):
                raise InputError(f"{self.out} holds heads of another model; name another folder")
        plan = [(name, name, self.steps, False) for name in dict.fromkeys((BASELINE, *objectives))]
        plan.append((f"{BASELINE}, reference", BASELINE, self.steps, True))
        plan.append((f"{BASELINE}, twice the steps", BASELINE, 2 * self.steps, False))
        found = {}
        for name, objective, steps, beside in plan:
            home, minutes = self._trained(objective, steps, beside)
            found[name] = (objective, steps, beside, minutes, self._judged(home))
        shown = {name: str(value) for name, value in self.given.items()}
        first = found[BASELINE][-1]
        record = ObjectivesRecord(
            self.pipeline.name,
            self.method,
            self.steps,
            len(first["greedy"].calls),
            shown,
            environment(self._judge.teacher.model.device),
        )
        for name, (objective, steps, beside, minutes, stats) in found.items():
            figures = {kind: accepted_of(stats[kind], first[kind]) for kind in TEMPERATURES}
            extra = self.steps if beside else 0
            record.heads[name] = Learned(objective, steps, extra, minutes, **figures)
        return record

    def _home(self, name: str) -> Path:
        """The folder of a head, with the model's files."""
        home = self.out / "trained" / name
        _joined([*self.model.iterdir()], home)
        lessons, ours = self.out / "lessons", home / "training" / "lessons"
        for folder in (lessons, ours.parent):
            folder.mkdir(exist_ok=True)
        if not ours.is_symlink():
            ours.symlink_to(lessons)
        return home

    def _trained(self, objective: str, steps: int, beside: bool) -> tuple[Path, float]:
        """Train a head, or go on with it; its folder, and minutes of training."""
        mark = "-reference" if beside else ""
        home = self._home(f"{objective}{mark}-{steps}")
        how = {**self.given, "objective": objective, "steps": steps, "evaluate_every": steps}
        if beside:
            reference = home / "heads" / REFERENCE
            first = self.out / "trained" / f"{BASELINE}-{steps}" / "heads" / self.method
            shutil.copytree(first, reference, dirs_exist_ok=True)
            how["reference"] = REFERENCE
        (record,) = train(self.recipe, home, stage=self.method, **how)
        return home, record["minutes"]

    def _judged(self, home: Path) -> dict[str, SpecStats]:
        """Statistics of a trained head's drafts by temperature."""
        head = load_head(home / "heads" / self.method).to(self._judge.config.device)
        return {name: self._judge.accepted(head, heat) for name, heat in TEMPERATURES.items()}

    @cached_property
    def _judge(self) -> HeadRecipe:
        """A recipe that has the target and the held-out prompts; it learns nothing."""
        home = self._home(f"{BASELINE}-{self.steps}")
        stage = STAGES[self.recipe][self.method]
        named = {field for field in TrainConfig.__dataclass_fields__ if field in self.given}
        own = {name: self.given[name] for name in named}
        config = TrainConfig(home / "training" / "judge", **{**stage.config, **own})
        options = {name: value for name, value in self.given.items() if name not in named}
        recipe: HeadRecipe = resolve(stage.recipe)(config, home, **stage.arguments, **options)
        return recipe


def _joined(files: Sequence[Path], folder: Path) -> None:
    """Put files into a folder, as further names of what is on disk where that can be."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        if not (there := folder / file.name).exists():
            try:
                there.hardlink_to(file)
            except OSError:  # on another disk
                shutil.copy(file, there)
