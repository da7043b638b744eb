"""What users ask pipelines of pictures for, checked."""

from __future__ import annotations

from ..errors import InputError


def check_prompts(captions: list[str]) -> None:
    """Raise an `InputError` if there is nothing to draw."""
    if not captions or not all(c.strip() for c in captions):
        raise InputError("the prompt is empty; say what to draw")


def check_count(num_images_per_prompt: int) -> None:
    """Raise an `InputError` for a number of pictures that is out of range."""
    if not 1 <= num_images_per_prompt <= 1024:
        raise InputError(
            f"num_images_per_prompt must be from 1 to 1024, not {num_images_per_prompt}"
        )


def negatives(negative_prompt: str | list[str] | None, captions: list[str]) -> list[str] | None:
    """A negative prompt for every caption."""
    if negative_prompt is None:
        return None
    if isinstance(negative_prompt, str):
        return [negative_prompt] * len(captions)
    if len(negative_prompt) != len(captions):
        raise InputError(f"{len(negative_prompt)} negative prompts for {len(captions)} prompts")
    return list(negative_prompt)
