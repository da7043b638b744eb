"""Methods by modality and checkpoint: what each promises, and how far it is shown to work."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ...methods import PIPELINES, Modality, ResolvedConfig, SpecConfig, presets, serving
from ...models.embedded import MODELS
from ...pipelines.model_folders import embedded_name
from ...registry import resolve
from ..schema import Report
from .table import Table

MEASURED, TRAINED, LOADS, OPEN = "●", "◐", "○", "·"
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
    needs = {part.split("/")[0] for part in config.needs}
    if pipeline is None:
        return needs <= {"drafter", "heads"} and not config.unverified
    # the experts of a verdict are pipelines of their own
    return needs <= {"experts", *resolve(pipeline)._optional_components}


def matrix(paths: Sequence[Path]) -> str:
    """A table for each kind of model in Markdown, and what the marks mean.

    Args:
        paths: reports; their rows are the evidence of the embedded models.

    Raises:
        InputError: a path holds no report.
    """
    seen = measured([Report.read(path) for path in paths])
    sections = [LEGEND]
    for modality, kind in PIPELINES.items():
        columns = ("method", "contract", "embedded", *kind.checkpoints)
        rows = {}
        for name in serving(modality):
            config = SpecConfig(name).resolve(modality)
            trained = TRAINED if _ships(modality, *config.needs) else OPEN
            marks = [MEASURED if name in seen[modality] else trained]
            marks += [LOADS if takes(of, config) else OPEN for of in kind.checkpoints.values()]
            rows[name] = (config.contract, *marks)
        table = Table.of("", columns, rows, numbers=False).markdown().split("\n\n", 1)[1]
        sections.append(f"### {modality}\n\n{table}")
    return "\n\n".join(sections) + "\n"


def measured(reports: Sequence[Report]) -> dict[Modality, set[str]]:
    """The methods that have a row in a report of a model that ships, by modality."""
    found: dict[Modality, set[str]] = {modality: set() for modality in PIPELINES}
    for report in reports:
        if report.for_reporting and report.pipeline in found and _ships(report.pipeline):
            names = (name.split("@")[0].split("[")[0] for name in report.methods)
            found[report.pipeline].update(name for name in names if name in presets())
    return found


def _ships(modality: Modality, *parts: str) -> bool:
    """True if a modality's embedded model is there, and so are parts of it."""
    home = MODELS / embedded_name(modality)
    return home.is_dir() and all((home / part).is_dir() for part in parts)
