"""Texts of which some are the same, so that each is read once."""

from __future__ import annotations

from collections.abc import Sequence


def distinct(texts: Sequence[str]) -> tuple[list[str], list[int]]:
    """Deduplicate texts, in order; and for every one given its number among them."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return [*numbers], [numbers[text] for text in texts]
