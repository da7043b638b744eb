"""A language model in a folder of transformers' layout."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

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
from ..masked_folders import MASK, PUBLISHED, READING, SHIFTED


def is_text(folder: Path) -> bool:
    """True if a folder holds a language model, which sees no pictures; a masked one, too."""
    family = str(read_object(folder / "config.json").get("model_type"))
    if family in PUBLISHED:
        return True
    sees = family in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    return family in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and not sees


def load_text(
    folder: Path,
    dtype: torch.dtype,
    names: Collection[str] = ("model", "tokenizer"),
    variant: str | None = None,
    masked: Literal["none", "answers", "drafts"] = "none",
) -> dict[str, Any]:
    """The `model` of a folder, on the CPU, and its `tokenizer`.

    Args:
        names: of the two, those that are wanted.
        variant: of the weights' files, such as "fp16"; None: those without.
        masked: which masked models may be loaded: none; those that can answer, whose text is read
            causally; or all, to draft. See `PUBLISHED`.

    Raises:
        InputError: a file is missing or unreadable, a tensor does not fit, or the family is
            unknown.
    """
    told = read_object(folder / "config.json")
    family = str(told.get("model_type"))
    layout = PUBLISHED.get(family)
    if layout is not None or told.get(MASK) is not None:
        reading = told.get(READING, "causal" if layout is None else layout.reading)
        if masked == "none" or (masked == "answers" and reading == "whole"):
            does = "is no teacher" if masked == "none" else "does not answer"
            raise InputError(
                f"{folder} is a masked language model ({family!r}), which drafts here and {does}; "
                "put it in the folder drafter of a model of its words, for method 'deer'"
            )
    kind = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(family if layout is None else layout.family)
    if kind is None:
        raise InputError(f"{folder} is no language model that transformers knows: {family!r}")
    parts = {}
    if "model" in names:
        model = load_component(getattr(transformers, kind), folder, dtype, variant)
        if layout is not None:
            for name, value in ((SHIFTED, layout.shifted), (READING, layout.reading)):
                setattr(model.config, name, getattr(model.config, name, value))
        parts["model"] = model
    if "tokenizer" in names:
        own = None if layout is None else layout.family
        parts["tokenizer"] = load_component(AutoTokenizer, folder, dtype, family=own)
    return parts
