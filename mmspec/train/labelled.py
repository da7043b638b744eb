"""Examples that frozen models made once and all steps learn from: which of them, how many."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..progress import bar
from ..registry import check_name
from .feature_cache import read_cached, write_cached

Settings = Mapping[str, tuple[float, float]]
"""Settings of a recipe by name: what each is unless it is given, and the most that it may be.

Those that are whole numbers unless they are given can be nothing else.
"""


def places(size: int, rng: np.random.Generator, step: int) -> Any:
    """Places of a step's examples, as parts of all, in [0, 1)."""
    return rng.random(size)


def settings_of(given: Mapping[str, str], known: Settings, what: str) -> dict[str, float]:
    """Settings as numbers.

    Args:
        known: all that there are.
        what: they are of.
    """
    settings = {name: usual for name, (usual, _) in known.items()}
    for name, text in given.items():
        check_name(f"setting of {what}", name, settings)
        usual, most = known[name]
        try:
            settings[name] = type(usual)(text)
        except ValueError as error:
            kind = "whole number" if isinstance(usual, int) else "number"
            raise InputError(f"{name} of {what} is a {kind}, not {text!r}") from error
        if not 0 < settings[name] <= most:
            raise InputError(f"{name} of {what} is above 0 and at most {most:g}, not {text}")
    return settings


def gathered(
    file: Path,
    split: str,
    count: int,
    together: int,
    made: Callable[[int, int], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """Examples of `count` pictures, from a file or made and kept there.

    Args:
        split: that the pictures are of, for the progress bar.
        together: pictures at a time.
        made: examples of the pictures from one number to another; their tensors are joined.
    """
    found: tuple[Tensor, ...] | None = read_cached(file)
    if found is None:
        parts = []
        with bar(f"pictures ({split})", "pictures", count) as told, torch.inference_mode():
            for first in range(0, count, together):
                end = min(count, first + together)
                parts.append(made(first, end))
                told.update(end - first)
        found = tuple(torch.cat(part).cpu() for part in zip(*parts, strict=True))
        write_cached(file, found)
    return found
