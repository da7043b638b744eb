"""A language model in a folder of transformers' layout."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoTokenizer
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

from ...errors import InputError
from ...files import read_object
from ..loading import load_component

TOKENIZER = "tokenizer_config.json"  # a folder with a tokenizer has it


def is_text(folder: Path) -> bool:
    """True if a folder holds a language model, which sees no pictures."""
    family = str(read_object(folder / "config.json").get("model_type"))
    sees = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not sees


def load_text(
    folder: Path,
    dtype: torch.dtype,
    names: Collection[str] = ("model", "tokenizer"),
    variant: str | None = None,
) -> dict[str, Any]:
    """The `model` of a folder, on the CPU, and its `tokenizer`.

    Args:
        names: of the two, those that are wanted.
        variant: of the weights' files, such as "fp16"; None: those without.

    Raises:
        InputError: a file is missing or unreadable, a tensor does not fit, or the family is
            unknown.
    """
    family = str(read_object(folder / "config.json").get("model_type"))
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family)
    if kind is None:
        raise InputError(f"{folder} is no language model that transformers knows: {family!r}")
    parts = {}
    if "model" in names:
        parts["model"] = load_component(getattr(transformers, kind), folder, dtype, variant)
    if "tokenizer" in names:
        parts["tokenizer"] = load_component(AutoTokenizer, folder, dtype)
    return parts
