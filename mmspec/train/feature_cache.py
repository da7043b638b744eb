"""Cache of features on disk: what frozen models make of a recipe's data.

To compute them takes as long as to learn from them, or longer.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..files import atomic


def cache_folder(pipeline: Path, kind: str, components: Sequence[str]) -> Path:
    """The folder of what a pipeline's components made; other weights have another folder.

    Args:
        kind: names what is kept.
        components: of the folder, by whose weights and configuration it was made.
    """
    digest = hashlib.sha256()
    for name in components:
        for file in sorted((pipeline / name).glob("*.*")):
            if file.suffix == ".safetensors" or file.name == "config.json":
                digest.update(file.read_bytes())
    return pipeline / "training" / kind / digest.hexdigest()[:12]


def read_cached(file: Path) -> Any:
    """The content of a file; None: it is missing or not whole."""
    try:
        return torch.load(file, weights_only=True)
    except Exception:  # torch.load raises what its parsers raise
        return None


def write_cached(file: Path, content: Any) -> None:
    """Write tensors, and what holds them; a reader sees the whole file or none.

    Raises:
        InputError: it can't be written: the disk is full, say.
    """
    with atomic(file) as part, part.open("wb") as opened:
        try:
            torch.save(content, opened)
        except RuntimeError as error:  # of the archive; what the system said lies beneath
            cause = error.__context__
            raise cause if isinstance(cause, OSError) else error from None
