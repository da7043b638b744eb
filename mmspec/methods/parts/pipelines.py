"""Pipelines, one a modality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from ..part import Tokens

Modality = Literal["image", "vlm", "continuous", "video"]
MODALITIES: tuple[Modality, ...] = get_args(Modality)


@dataclass(frozen=True)
class PipelineKind:
    """A modality and its pipeline.

    Attributes:
        reference: the pipeline's class, as "module:Class".
        tokens: what its tokens are.
        does: what its models do, as sentences say it.
        first: the methods that commands and demo begin with: the first that a model has the parts
            for.
    """

    reference: str
    tokens: Tokens
    does: str
    first: tuple[str, ...]


_HERE = "mmspec.pipelines"
PIPELINES: dict[Modality, PipelineKind] = {
    "image": PipelineKind(
        f"{_HERE}.image.pipeline:ImagePipeline", "ids", "draws pictures", ("scd",)
    ),
    "vlm": PipelineKind(
        f"{_HERE}.vlm.pipeline:VlmPipeline",
        "ids",
        "writes text",
        ("eagle", "draft", "prompt-lookup"),
    ),
    "continuous": PipelineKind(
        f"{_HERE}.continuous.pipeline:ContinuousImagePipeline",
        "vectors",
        "draws pictures of continuous tokens",
        ("reflection",),
    ),
    "video": PipelineKind(
        f"{_HERE}.video.pipeline:VideoPipeline", "blocks", "makes videos", ("sdvg",)
    ),
}
