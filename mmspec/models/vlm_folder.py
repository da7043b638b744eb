"""A vision-language model in a folder of transformers' layout, and how its processor is asked."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

from ..errors import InputError
from .loading import load_component, read_json
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
    family = str(read_json(folder / "config.json").get("model_type"))
    check_family(family)
    kind = getattr(transformers, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES[family])
    parts = {}
    if "model" in names:
        parts["model"] = load_component(kind, folder, dtype, variant)
    if "processor" in names:
        parts["processor"] = load_component(AutoProcessor, folder, dtype)
    return parts


def asked(
    processor: Any,
    pictures: Sequence[Sequence[Any]],
    questions: Sequence[str | list[dict[str, Any]]],
) -> dict[str, Tensor]:
    """What a processor makes of conversations, left-padded.

    Args:
        processor: of transformers, with a chat template.
        pictures: those of every question, opened.
        questions: as many; of one turn each, or the messages of several.

    Raises:
        InputError: the processor has no chat template.
    """
    if processor.chat_template is None:
        raise InputError(
            f"{type(processor).__name__} has no chat template; set processor.chat_template"
        )
    texts = [
        processor.apply_chat_template(_turn(len(seen), text), add_generation_prompt=True)
        for seen, text in zip(pictures, questions, strict=True)
    ]
    given: dict[str, Any] = {"images": list(pictures)} if any(pictures) else {}
    batch: dict[str, Any] = processor(
        text=texts, **given, padding=True, padding_side="left", return_tensors="pt"
    )
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def _turn(pictures: int, question: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A user's message with placeholders, as chat templates want it."""
    if not isinstance(question, str):
        return question
    content: list[dict[str, str]] = [{"type": "image"}] * pictures
    return [{"role": "user", "content": [*content, {"type": "text", "text": question}]}]
