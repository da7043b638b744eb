"""Methods by modality and checkpoint: what each promises, and how far it is shown to work."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ...methods import PIPELINES, Modality, ResolvedConfig, SpecConfig, presets, serving
from ...methods.parts.routing import ROUTERS
from ...methods.parts.steps import STEP_REWARD
from ...models.embedded import MODELS
from ...models.heads.formats.registry import FORMATS
from ...models.packaged import PACKAGED
from ...pipelines.model_folders import embedded_name
from ...registry import resolve
from ..schema import Report
from .table import Table

REAL, MEASURED, TRAINED, LOADS, OPEN = "◆", "●", "◐", "○", "·"
LEGEND = f"""\
- {MEASURED} the embedded model is measured: the method is a row of a report.
- {TRAINED} the embedded model has all parts that the method needs, and no report has a row yet.
- {LOADS} the loader of the published format is tested on random weights in that layout, and so is
  that the model takes all that the method needs; no figure is claimed.
- {OPEN} not yet.

A method that is not in a table is not for such models. The contract is that of draws at
temperature 1."""


def takes(pipeline: str | None, config: ResolvedConfig) -> bool:
    """True if a method works with published checkpoints, once the parts it needs are trained.

    Args:
        pipeline: the class that loads them; None: `mmspec.enable_speculation` takes the model.
    """
    needs = {part.split("/")[0] for part in config.needs} - {"masked"}
    if pipeline is None:
        kinds = {"drafter", "heads", "judge", "masked-target", STEP_REWARD, *ROUTERS}
        return needs <= kinds and not config.unverified
    # the experts of a verdict are pipelines of their own
    return needs <= {"experts", STEP_REWARD, *resolve(pipeline)._optional_components}


def matrix(paths: Sequence[Path]) -> str:
    """A table for each kind of model in Markdown, and what the marks mean.

    Args:
        paths: reports; their rows are the evidence of the models that were measured.

    Raises:
        InputError: a path holds no report.
    """
    reports = [report for report in map(Report.read, paths) if report.for_reporting]
    seen = measured(reports)
    real = dict.fromkeys(PACKAGED[name].what for r in reports if (name := published(r)))
    told = f"- {REAL} a published checkpoint in this layout is measured: {', '.join(real)}.\n"
    sections = [(told if real else "") + LEGEND]
    for modality, kind in PIPELINES.items():
        columns = ("method", "contract", "embedded", *kind.checkpoints)
        rows = {}
        for name in serving(modality):
            config = SpecConfig(name).resolve(modality)
            trained = TRAINED if ships(modality, *config.needs) else OPEN
            marks = [MEASURED if name in seen[modality, "embedded"] else trained]
            for layout, of in kind.checkpoints.items():
                loads = LOADS if takes(of, config) else OPEN
                marks.append(REAL if name in seen[modality, layout] else loads)
            rows[name] = (config.contract, *marks)
        table = Table.of("", columns, rows, numbers=False).markdown().split("\n\n", 1)[1]
        sections.append(f"### {modality}\n\n{table}")
    sections.append(f"### draft heads from files\n\n{_formats(seen)}")
    return "\n\n".join(sections) + "\n"


def _formats(seen: Mapping[tuple[Modality, str], set[str]]) -> str:
    """A table of the formats of draft heads that are read."""
    rows = {}
    for form in FORMATS:
        # the heads that ship are in their own kind's layout
        own = form.name != "speculators" and seen["vlm", "embedded"] & set(form.methods)
        rows[form.name] = (", ".join(form.methods), MEASURED if own else OPEN, LOADS)
    columns = ("format", "methods", "embedded", "files")
    table = Table.of("", columns, rows, numbers=False).markdown()
    return table.split("\n\n", 1)[1]


def measured(reports: Sequence[Report]) -> defaultdict[tuple[Modality, str], set[str]]:
    """The methods that have a row in a report, by modality and column of its table.

    Only reports of models that ship, or that come as a package, are evidence.

    Args:
        reports: for reporting, of whole runs.
    """
    found: defaultdict[tuple[Modality, str], set[str]] = defaultdict(set)
    for report in reports:
        names = (name.split("@")[0].split("[")[0] for name in report.methods)
        own = {name for name in names if name in presets()}
        if report.pipeline in PIPELINES and report.model == "embedded" and ships(report.pipeline):
            found[report.pipeline, "embedded"] |= own
        elif (name := published(report)) is not None:
            found["vlm", PACKAGED[name].layout] |= own
    return found


def published(report: Report) -> str | None:
    """The published checkpoint that the model is, which comes as a package; None: it is none."""
    name = report.model if report.checkpoint is None else report.checkpoint
    return name if report.pipeline == "text" and name in PACKAGED else None


def ships(modality: Modality, *parts: str) -> bool:
    """True if a modality's embedded model is there, and so are parts of it."""
    home = MODELS / embedded_name(modality)
    return home.is_dir() and all((home / part).is_dir() for part in parts)
