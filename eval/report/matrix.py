"""Methods by modality and checkpoint: what each promises, and how far it is shown to work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ...methods import PIPELINES, Modality, ResolvedConfig, SpecConfig, presets, serving
from ...models.embedded import MODELS
from ...pipelines.model_folders import embedded_name
from ...registry import resolve
from ..schema import Report
from .table import Cell, Row, Table

MEASURED, TRAINED, LOADS, OPEN = "●", "◐", "○", "·"
LEGEND = f"""\
- {MEASURED} the embedded model is measured: the method is a row of a report.
- {TRAINED} the embedded model has all parts that the method needs, and no report has a row yet.
- {LOADS} the loader of the published format is tested on random weights in that layout, and so is
  that the model takes all that the method needs; no figure is claimed.
- {OPEN} not yet.

A method that is not in a table is not for such models. The contract is that of draws at
temperature 1."""


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
    """A table for each kind of model in Markdown, and what the marks mean.

    Args:
        paths: reports; their rows are the evidence of the embedded models.

    Raises:
        InputError: a path holds no report.
    """
    seen = measured([Report.read(path) for path in paths])
    sections = [LEGEND]
    for modality in dict.fromkeys(kind.modality for kind in PUBLISHED):
        kinds = [kind for kind in PUBLISHED if kind.modality == modality]
        columns = ("method", "contract", "embedded", *(kind.names for kind in kinds))
        rows = [_row(name, modality, kinds, seen[modality]) for name in serving(modality)]
        table = Table("", columns, tuple(rows), numbers=False).markdown().split("\n\n", 1)[1]
        sections.append(f"### {modality}\n\n{table}")
    return "\n\n".join(sections) + "\n"


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


def _row(name: str, modality: Modality, kinds: Sequence[Published], seen: set[str]) -> Row:
    config = SpecConfig(name).resolve(modality)
    trained = _ships(modality, *config.needs)
    marks = [MEASURED if name in seen else TRAINED if trained else OPEN]
    marks += [LOADS if kind.takes(config) else OPEN for kind in kinds]
    return Row(name, tuple(map(Cell, (config.contract, *marks))))
