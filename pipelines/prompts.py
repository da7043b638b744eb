"""Check the prompts, classes and sampling settings of a call."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..errors import InputError

Labels = int | Sequence[int] | Tensor | np.ndarray[Any, Any]  # classes


def captions_of(prompt: str | Sequence[str]) -> list[str]:
    """List of captions from one or several; an `InputError` if one is empty."""
    captions = (
        [prompt] if isinstance(prompt, str) or not isinstance(prompt, Sequence) else [*prompt]
    )
    for caption in captions:
        if not isinstance(caption, str):
            raise InputError(f"the prompt must be text, or a list of texts, not {caption!r}")
    if not captions or not all(c.strip() for c in captions):
        raise InputError("the prompt is empty; say what to draw")
    return captions


def told(prompt: Any, labels: Labels | None, count: int | None) -> list[str] | list[int]:
    """Captions of the pictures; for a model of `count` classes labels, or their numbers as text."""
    if count is None:
        if labels is not None or prompt is None:
            raise InputError("this model is told captions: give prompt, not class_labels")
        return captions_of(prompt)
    wanted = f"this model is told classes, numbers from 0 to {count - 1}"
    if (prompt is None) == (labels is None):
        raise InputError(f"{wanted}: give class_labels, or numbers as prompt")
    said: Any = prompt if labels is None else labels
    found: list[int] = []
    try:
        alone = isinstance(said, str) or not getattr(said, "ndim", not isinstance(said, int))
        for one in [said] if alone else said:
            found.append(int(one) if isinstance(one, str) else operator.index(one))
    except (TypeError, ValueError) as error:
        raise InputError(f"{wanted}, not {said!r}") from error
    if not found or not all(0 <= label < count for label in found):
        raise InputError(f"{wanted}, not {said!r}")
    return found


def check_between(name: str, value: float, low: float, high: float) -> None:
    """Raise an `InputError` unless a number is from `low` to `high`."""
    if not low <= value <= high:
        raise InputError(f"{name} must be from {low} to {high}, not {value}")


def check_guidance(scale: float | None) -> None:
    """Raise an `InputError` for a guidance scale out of range; None: a model's own."""
    if scale == 0:
        raise InputError("guidance_scale 0 would not read the prompt; 1 switches guidance off")
    check_between("guidance_scale", 1 if scale is None else scale, 0, 100)


def check_sampling(temperature: float, top_k: int, top_p: float) -> None:
    """Raise an `InputError` for a warper out of range."""
    # a smaller temperature would overflow the logits
    if temperature != 0 and not 1e-6 <= temperature <= 100:
        raise InputError(f"temperature must be 0 or from 1e-6 to 100, not {temperature}")
    check_between("top_k", top_k, 0, 2**31)
    if not 0 < top_p <= 1:
        raise InputError(f"top_p must be above 0 and at most 1, not {top_p}")


def check_tensor_inputs(names: Sequence[str]) -> None:
    """Raise an `InputError` unless a callback wants of a step's tensors the latents alone."""
    for name in names:
        if name != "latents":
            raise InputError(
                f"callback_on_step_end_tensor_inputs may name 'latents' alone, not {name!r}"
            )


def negatives(negative_prompt: str | list[str] | None, captions: Sequence[Any]) -> list[str] | None:
    """A negative prompt for every caption."""
    if negative_prompt is None:
        return None
    if isinstance(negative_prompt, str):
        return [negative_prompt] * len(captions)
    if len(negative_prompt) != len(captions):
        raise InputError(f"{len(negative_prompt)} negative prompts for {len(captions)} prompts")
    return list(negative_prompt)
