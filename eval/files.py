"""Files that appear whole or not at all."""

from __future__ import annotations

import io
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL import Image


def write_atomic(path: Path, content: str | bytes) -> Path:
    """Write a file under another name, to the disk, and then give it its own; returns the path.

    Whatever stops the program, `path` is as it was or holds all of `content`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    return path


def write_measured(out: Path, name: str, record: Any, page: str, plot: str) -> list[Path]:
    """Write what a benchmark found as `NAME.json`, a dataclass, `NAME.md` and `NAME.svg`."""
    files = {"json": json.dumps(asdict(record), indent=2) + "\n", "md": page, "svg": plot}
    return [write_atomic(out / f"{name}.{suffix}", text) for suffix, text in files.items()]


def png_bytes(image: Image.Image) -> bytes:
    """A picture as a PNG file holds it."""
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()
