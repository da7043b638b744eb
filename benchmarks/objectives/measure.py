"""Drafters that are trained by one objective each, and how far their drafts are accepted."""

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
import torch

from mmspec.engine.stats import SpecStats
from mmspec.errors import InputError
from mmspec.eval.environment import environment
from mmspec.eval.measure.bootstrap import Interval, known_interval
from mmspec.files import read_object
from mmspec.models.heads.loading import load_head
from mmspec.models.loading import load_component
from mmspec.registry import check_name, resolve
from mmspec.train.heads.objectives import RANDOM
from mmspec.train.heads.recipe import HeadRecipe
from mmspec.train.recipes import STAGES, train
from mmspec.train.text.drafter import DRAFTER, TextAlignRecipe
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
    """A head, or a small model.

    Attributes:
        objective: its loss on laws.
        steps: of its training on the target's answers.
        steps_before: of the training of its reference, or of its own on plain text; 0: there was
            none.
        minutes: of its trainings, answers that the target wrote for it included.
        greedy, sampled: at temperature 0, and 1.
    """

    objective: str
    steps: int
    steps_before: int
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


@dataclass(frozen=True)
class _Way:
    """Settings of a training.

    Attributes:
        objective, steps, reference: see `mmspec train`.
        pretrained: plain text comes first (FastDraft).
    """

    objective: str
    steps: int
    reference: str | None = None
    pretrained: bool = False

    @property
    def home(self) -> str:
        """Name of its folder."""
        first = "pretrained-" if self.pretrained else ""
        beside = {None: "", REFERENCE: "-reference"}.get(self.reference, f"-{self.reference}")
        return f"{first}{self.objective}{beside}-{self.steps}"


class Comparison:
    """Heads of one kind, or small models, over one model, trained by several objectives.

    Each has a folder `trained/NAME` of the output. All begin with the same weights and learn from
    the same answers; a language model's lie in `lessons`. The pipeline's folder stays as it is.

    Args:
        pipeline: folder of the model.
        out: folder that is written.
        method: kind of head, or "drafter": a small model.
        steps: of a training.
        given: other options of `mmspec train`.
        corpus: plain text that a small model is trained on in front of the answers, by as many
            steps; None: there is no such row.

    Raises:
        InputError: the model has no such drafter, or heads are given plain text.
    """

    def __init__(
        self,
        pipeline: Path,
        out: Path,
        method: str,
        steps: int,
        given: Mapping[str, Any],
        corpus: Path | None = None,
    ) -> None:
        sees = "vision_config" in read_object(pipeline / "config.json")
        heads = "vlm-head" if sees else "text-head"
        check_name("head", method, {**STAGES[heads], DRAFTER: None})
        self.small, self.corpus = method == DRAFTER, corpus
        if self.small and sees:
            raise InputError(
                f"{pipeline} sees pictures, and no recipe trains a small model for it; name a "
                "language model's folder by --pipeline"
            )
        if corpus is not None and not self.small:
            raise InputError("heads learn from answers alone; leave --corpus out")
        self.recipe, self.stage = ("text-drafter", "align") if self.small else (heads, method)
        self.pipeline, self.out, self.method = pipeline.resolve(), out.resolve(), method
        self.steps, self.given = steps, dict(given)
        self.model = self.out / "model"

    def run(self, objectives: Sequence[str]) -> ObjectivesRecord:
        """Train and judge the heads.

        These are one by each objective, the baseline by cross-entropy; one that learns beside that
        one at some places alone (AdaSPEC); and what a sceptic asks for: twice the steps in place
        of a reference, or places that are drawn. With plain text, one that begins with it and
        learns the target's tokens then (FastDraft).

        Raises:
            InputError: the output holds heads of another model or of other options.
        """
        files = [path.resolve() for path in self.pipeline.iterdir() if path.is_file()]
        _joined(files, self.model)
        for file in files:
            if not filecmp.cmp(file, self.model / file.name, shallow=False):
                raise InputError(f"{self.out} holds heads of another model; name another folder")
        plan = {name: _Way(name, self.steps) for name in (BASELINE, *objectives)}
        plan[f"{BASELINE}, reference"] = _Way(BASELINE, self.steps, REFERENCE)
        plan[f"{BASELINE}, places at random"] = _Way(BASELINE, self.steps, RANDOM)
        plan[f"{BASELINE}, twice the steps"] = _Way(BASELINE, 2 * self.steps)
        if self.corpus is not None:
            plan["text, then tokens"] = _Way("tokens", self.steps, pretrained=True)
        found = {}
        for name, way in plan.items():
            home, minutes = self._trained(way)
            found[name] = (way, minutes, self._judged(home))
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
        for name, (way, minutes, stats) in found.items():
            figures = {kind: accepted_of(stats[kind], first[kind]) for kind in TEMPERATURES}
            before = self.steps if way.pretrained or way.reference == REFERENCE else 0
            record.heads[name] = Learned(way.objective, way.steps, before, minutes, **figures)
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

    def _trained(self, way: _Way) -> tuple[Path, float]:
        """Train a drafter, or go on with it; its folder, and minutes of training."""
        home, minutes = self._home(way.home), 0.0
        how = {**self.given, "steps": way.steps, "evaluate_every": way.steps}
        if way.pretrained:
            (record,) = train(self.recipe, home, stage="pretrain", **{**how, "data": self.corpus})
            minutes = record["minutes"]
        how["objective"], how["reference"] = way.objective, way.reference
        if way.reference == REFERENCE:
            first = self._drafter(self._home(_Way(BASELINE, way.steps).home))
            place = home if self.small else home / "heads"
            shutil.copytree(first, place / REFERENCE, dirs_exist_ok=True)
        given = {name: value for name, value in how.items() if value is not None}
        (record,) = train(self.recipe, home, stage=self.stage, **given)
        return home, minutes + record["minutes"]

    def _drafter(self, home: Path) -> Path:
        """The folder of what was trained."""
        return home / DRAFTER if self.small else home / "heads" / self.method

    def _judged(self, home: Path) -> dict[str, SpecStats]:
        """Statistics of a trained drafter's drafts by temperature."""
        judge, folder = self._judge, self._drafter(home)
        drafter: Any
        if isinstance(judge, TextAlignRecipe):
            model = load_component(type(judge.model), folder, torch.float32)
            drafter = judge.drafting(model.to(judge.config.device))
        else:
            drafter = load_head(folder).to(judge.config.device)
        return {name: judge.accepted(drafter, heat) for name, heat in TEMPERATURES.items()}

    @cached_property
    def _judge(self) -> HeadRecipe | TextAlignRecipe:
        """A recipe that has the target in float32 and the held-out prompts; it learns nothing."""
        home = self._home(_Way(BASELINE, self.steps).home)
        stage = STAGES[self.recipe][self.stage]
        named = {field for field in TrainConfig.__dataclass_fields__ if field in self.given}
        own = {name: self.given[name] for name in named - {"precision"}}
        config = TrainConfig(home / "training" / "judge", **{**stage.config, **own})
        options = {name: value for name, value in self.given.items() if name not in named}
        recipe: HeadRecipe | TextAlignRecipe
        recipe = resolve(stage.recipe)(config, home, **stage.arguments, **options)
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
