"""Origin of a saved model's weights: the GGUF file, as long as they are still its own.

A model that is read from GGUF keeps it in its configuration, and so does every folder that it is
saved to, with drafters and heads beside it or none. Weights that were trained since then are
others, whatever the configuration says: their digest tells.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import read_object

FIELD = "gguf_origin"  # of a model's configuration


@dataclass(frozen=True)
class GgufOrigin:
    """The GGUF file that weights were read from.

    Attributes:
        file: its path.
        sha256: its digest.
        state: that of the weights as they were read, see `state_digest`.
        package: the packaged model whose file it is, by name; "": it is the user's.
    """

    file: str
    sha256: str
    state: str
    package: str = ""

    def to_dict(self) -> dict[str, str]:
        """Convert to plain JSON, as a configuration holds it."""
        return asdict(self)


def file_digest(file: Path) -> str:
    """The SHA-256 of a file's bytes."""
    whole = hashlib.sha256()
    with file.open("rb") as opened:
        while part := opened.read(2**20):
            whole.update(part)
    return whole.hexdigest()


def state_digest(tensors: Mapping[str, Any]) -> str:
    """The SHA-256 of tensors with their names, types and shapes, in the order of the names."""
    import torch

    whole = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.flatten().view(torch.uint8).numpy())
    return whole.hexdigest()


def origin_of(folder: Path) -> GgufOrigin | None:
    """The GGUF file whose very weights a folder of transformers' layout holds.

    None: it came from none, its weights or the file have changed since then, or the file is gone.
    The file of a packaged model is looked for where the package is now.
    """
    config = folder / "config.json"
    if not config.is_file():
        return None
    try:
        told = read_object(config).get(FIELD)
        origin = GgufOrigin(**told) if isinstance(told, dict) else None
    except (InputError, TypeError):
        return None
    if origin is None:
        return None
    file = _file_of(origin)
    if file is None or _digest_of(file, _stamp(file)) != origin.sha256:
        return None
    weights = tuple(sorted(folder.glob("*.safetensors")))
    if _state_of(weights, tuple(map(_stamp, weights))) != origin.state:
        return None
    return GgufOrigin(str(file), origin.sha256, origin.state, origin.package)


def _file_of(origin: GgufOrigin) -> Path | None:
    from .packaged import PACKAGED

    known = PACKAGED.get(origin.package)
    file = Path(origin.file) if known is None else known.path
    return file if file is not None and file.is_file() else None


def _stamp(file: Path) -> tuple[int, int]:
    found = file.stat()
    return found.st_mtime_ns, found.st_size


@lru_cache
def _digest_of(file: Path, stamp: tuple[int, int]) -> str:
    return file_digest(file)


@lru_cache
def _state_of(weights: tuple[Path, ...], stamps: tuple[tuple[int, int], ...]) -> str:
    from safetensors.torch import load_file

    tensors: dict[str, Any] = {}
    for file in weights:
        tensors |= load_file(file)
    return state_digest(tensors)
