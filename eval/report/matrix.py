"""Methods by modality and checkpoint: what each promises, and how far it is shown to work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...methods import PIPELINES, Modality, ResolvedConfig, SpecConfig, presets
from ...models.embedded import MODELS
from ...pipelines.base import embedded_name
from ...registry import resolve
from ..schema import Report
from .table import Cell, Row, Table

MEASURED, TRAINED, LOADS, OPEN = "●", "◐", "○", "·"
LEGEND = (
    f"{MEASURED} trained embedded model, measured: a row of a report; {TRAINED} trained embedded "
    f"model, all parts there, and no row yet; {LOADS} published-format loader: it, and that all "
    "the method needs is taken, are tested on random weights in that layout, and no figure is "
    f"claimed; {OPEN} not yet; empty: the method is not for such models. A contract is that of "
    "draws at temperature 1."
)


@dataclass(frozen=True)
class Published:
    """Checkpoints of other people in one form.

    Attributes:
        names: as their authors call them.
        pipeline: the class that loads them; None: `mmspec.enable_speculation` takes the model.
        tests: files that load them.
    """

    modality: Modality
    names: str
    pipeline: str | None
    tests: tuple[str, ...]

    def takes(self, config: ResolvedConfig) -> bool:
        """Whether a method works there, once the parts that it needs are trained."""
        needs = {part.split("/")[0] for part in config.needs}
        if self.pipeline is None:
            return needs <= {"drafter", "heads"} and not config.unverified
        # the experts of a verdict are pipelines of their own
        return needs <= {"experts", *resolve(self.pipeline)._optional_components}


PUBLISHED = (
    Published(
        "image",
        "LlamaGen",
        PIPELINES["image"].reference,
        ("models/test_checkpoints", "llamagen/test_published"),
    ),
    Published(
        "image",
        "Janus, Emu3, Chameleon",
        "mmspec.pipelines.image.transformers_pipeline:TransformersImagePipeline",
        ("transformers/test_janus", "transformers/test_emu3", "transformers/test_chameleon"),
    ),
    Published("image", "GLM-Image", None, ("transformers/test_glm_image",)),
    Published(
        "vlm",
        "LLaVA, Qwen-VL, InternVL, …",
        PIPELINES["vlm"].reference,
        ("transformers/test_vlm", "transformers/test_qwen_vl"),
    ),
    Published("vlm", "Llama, Qwen, …", None, ("transformers/test_causal",)),
    Published(
        "continuous",
        "MAR",
        PIPELINES["continuous"].reference,
        ("mar/test_published",),
    ),
    Published("video", "Wan", PIPELINES["video"].reference, ("wan/test_published",)),
)


def matrix(paths: Sequence[Path]) -> str:
    """The matrix in Markdown, with what the marks mean.

    Args:
        paths: reports; their rows are the evidence of the embedded models.

    Raises:
        InputError: a path holds no report.
    """
    seen = measured([Report.read(path) for path in paths])
    columns = ["method", "contract"]
    for kind in PUBLISHED:
        own = f"{kind.modality}: embedded"
        columns += [] if own in columns else [own]
        columns.append(kind.names)
    rows = tuple(_row(name, columns, seen) for name in presets())
    table = Table("", tuple(columns), rows, numbers=False).markdown().split("\n\n", 1)[1]
    return f"{table}\n\n{LEGEND}\n"


def measured(reports: Sequence[Report]) -> dict[Modality, set[str]]:
    """The methods that have a row in a report of a model that ships, by modality."""
    found: dict[Modality, set[str]] = {kind.modality: set() for kind in PUBLISHED}
    for report in reports:
        if report.for_reporting and report.pipeline in found and _ships(report.pipeline):
            names = (name.split("@")[0].split("[")[0] for name in report.methods)
            found[report.pipeline].update(name for name in names if name in presets())
    return found


def _ships(modality: Modality, *parts: str) -> bool:
    """Whether a modality's embedded model is there, and so are parts of it."""
    home = MODELS / embedded_name(modality)
    return home.is_dir() and all((home / part).is_dir() for part in parts)


def _row(name: str, columns: Sequence[str], seen: dict[Modality, set[str]]) -> Row:
    config, promised, marks = SpecConfig(name), [], {}
    resolved = {modality: config.resolve(modality) for modality in presets()[name].serves}
    for modality, parts in resolved.items():
        promised.append(parts.contract)
        trained = _ships(modality, *parts.needs)
        mark = TRAINED if trained else OPEN
        marks[f"{modality}: embedded"] = MEASURED if name in seen[modality] else mark
    for kind in PUBLISHED:
        if kind.modality in resolved:
            marks[kind.names] = LOADS if kind.takes(resolved[kind.modality]) else OPEN
    cells = tuple(Cell(marks.get(column, "")) for column in columns[2:])
    return Row(name, (Cell(", ".join(dict.fromkeys(promised))), *cells))
