"""A vision-language model in a folder of transformers' layout."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from ...errors import InputError
from ...files import read_object
from ..loading import load_component
from .prompted import DECODERS

VERDICT_WORDS = "verdict.json"  # how the model was taught to be asked for a verdict


def check_family(model_type: str) -> None:
    """Raise an `InputError` unless pictures of this family are known."""
    if model_type not in DECODERS.names() or model_type == "glm_image":
        known = ", ".join(name for name in DECODERS.names() if name != "glm_image")
        raise InputError(f"{model_type!r} is no model that answers here (known: {known})")


def load_vlm(
    folder: Path,
    dtype: torch.dtype,
    names: Collection[str] = ("model", "processor"),
    variant: str | None = None,
) -> dict[str, Any]:
    """The `model` of a folder, on the CPU, and its `processor`.

    Args:
        names: of the two, those that are wanted.
        variant: of the weights' files, such as "fp16"; None: those without.

    Raises:
        InputError: a file is missing or unreadable, a tensor does not fit, or the family is
            unknown.
    """
    family = str(read_object(folder / "config.json").get("model_type"))
    check_family(family)
    kind = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family])
    parts = {}
    if "model" in names:
        parts["model"] = load_component(kind, folder, dtype, variant)
    if "processor" in names:
        parts["processor"] = load_component(AutoProcessor, folder, dtype)
    return parts
