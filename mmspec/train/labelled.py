"""Examples that frozen models made once and all steps learn from: which of them, how many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..progress import bar
from .feature_cache import read_cached, write_cached


def places(size: int, rng: np.random.Generator, step: int) -> Any:
    """Places of a step's examples, as parts of all, in [0, 1)."""
    return rng.random(size)


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
