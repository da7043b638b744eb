"""Files of measurements, and pictures as bytes."""

from __future__ import annotations

import io
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import to_json, write_atomic

if TYPE_CHECKING:
    from PIL import Image


def write_measured(out: Path, name: str, record: Any, page: str, plot: str) -> list[Path]:
    """Write what a benchmark found as `NAME.json`, a dataclass, `NAME.md` and `NAME.svg`."""
    files = {"json": to_json(asdict(record), indent=2) + "\n", "md": page, "svg": plot}
    return [write_atomic(out / f"{name}.{suffix}", text) for suffix, text in files.items()]


def png_bytes(image: Image.Image) -> bytes:
    """A picture as a PNG file holds it."""
    file = io.BytesIO()
    image.save(file, "png")
    return file.getvalue()
