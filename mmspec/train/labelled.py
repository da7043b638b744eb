"""Examples that frozen models made once and all steps learn from: which of them, how many."""

from __future__ import annotations

import shutil
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

    Making them may take longer than learning from them, so the parts are kept, too, until all are
    there.

    Args:
        split: that the pictures are of, for the progress bar.
        together: pictures at a time.
        made: examples of the pictures from one number to another; their tensors are joined.
    """
    found: tuple[Tensor, ...] | None = read_cached(file)
    if found is None:
        parts, kept = [], file.with_name(f"{file.stem}.parts")
        with bar(f"pictures ({split})", "pictures", count) as told:
            for first in range(0, count, together):
                end = min(count, first + together)
                part = read_cached(kept / f"{first}-{end}.pt")
                if part is None:
                    with torch.inference_mode():
                        part = tuple(x.cpu() for x in made(first, end))
                    kept.mkdir(parents=True, exist_ok=True)
                    write_cached(kept / f"{first}-{end}.pt", part)
                parts.append(part)
                told.update(end - first)
        found = tuple(torch.cat(part) for part in zip(*parts, strict=True))
        write_cached(file, found)
        shutil.rmtree(kept, ignore_errors=True)
    return found
