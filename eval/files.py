"""Files of measurements, and pictures as bytes."""

from __future__ import annotations

import hashlib
import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import to_json, write_atomic

if TYPE_CHECKING:
    from PIL import Image


_READ = {".safetensors", ".bin", ".pt", ".pth", ".gguf", ".json", ".jinja", ".txt", ".model"}
_PIECE, _PIECES = 2**14, 64  # bytes, and how many times as many are read of a file


def fingerprint(path: Path) -> str:
    """Checksum of a file, or of what a pipeline reads of a folder, without reading gigabytes.

    Counted are names within the folder, sizes, and 64 pieces of 16 KiB spread over each file: a
    model that is trained on has another, surely if it is small. A `training` folder is left out.
    """
    files = [path]
    if path.is_dir():
        within = sorted(file for file in path.rglob("*") if file.suffix in _READ)
        files = [f for f in within if "training" not in f.relative_to(path).parts and f.is_file()]
    found = hashlib.sha256()
    for file in files:
        size = file.stat().st_size
        found.update(f"{file.relative_to(path)} {size}\n".encode())
        step = max(_PIECE, (size - _PIECE) // (_PIECES - 1))
        with file.open("rb") as content:
            for start in range(0, size, step):
                content.seek(start)
                found.update(content.read(_PIECE))
    return found.hexdigest()[:16]


def write_measured(out: Path, name: str, record: Any, page: str, plot: str) -> list[Path]:
    """Write what a benchmark found as `NAME.json`, a dataclass, `NAME.md` and `NAME.svg`."""
    files = {"json": to_json(asdict(record), indent=2) + "\n", "md": page, "svg": plot}
    return [write_atomic(out / f"{name}.{suffix}", text) for suffix, text in files.items()]


def png_bytes(image: Image.Image) -> bytes:
    """A picture as a PNG file holds it."""
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()
