"""Pipelines, one a modality."""

from __future__ import annotations

from collections.abc import Mapping
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
        checkpoints: published ones, as their authors call them, each with the class that loads
            them; None: `mmspec.enable_speculation` takes the model. Those of one layout share a
            name. A test loads the published layout of each.
    """

    reference: str
    tokens: Tokens
    does: str
    first: tuple[str, ...]
    checkpoints: Mapping[str, str | None]


_HERE = "mmspec.pipelines"
_IMAGE, _VLM = f"{_HERE}.image.pipeline:ImagePipeline", f"{_HERE}.vlm.pipeline:VlmPipeline"
_CONTINUOUS = f"{_HERE}.continuous.pipeline:ContinuousImagePipeline"
_VIDEO = f"{_HERE}.video.pipeline:VideoPipeline"
PIPELINES: dict[Modality, PipelineKind] = {
    "image": PipelineKind(
        _IMAGE,
        "ids",
        "draws pictures",
        ("scd",),
        {
            "LlamaGen": _IMAGE,
            "Janus, Emu3, Chameleon": (
                f"{_HERE}.image.transformers_pipeline:TransformersImagePipeline"
            ),
            "GLM-Image": None,
        },
    ),
    "vlm": PipelineKind(
        _VLM,
        "ids",
        "writes text",
        ("eagle", "deer", "s2d2", "draft", "prompt-lookup"),
        {"LLaVA, Qwen-VL, InternVL, …": _VLM, "Llama, Qwen, …": None},
    ),
    "continuous": PipelineKind(
        _CONTINUOUS,
        "vectors",
        "draws pictures of continuous tokens",
        ("reflection",),
        {"MAR": _CONTINUOUS},
    ),
    "video": PipelineKind(_VIDEO, "blocks", "makes videos", ("sdvg",), {"Wan": _VIDEO}),
}
