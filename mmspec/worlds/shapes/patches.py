"""Labels of the patches of a picture: ground truth for vision towers."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .charts import HIGHEST, Chart, chart_parts
from .exchanges import Picture
from .render import mask_of
from .scene import Scene
from .vocabulary import COLORS, SHAPES

# of a patch: what a part of the picture looks like and, of a chart's, its value or tenths of a pie;
# 0 everywhere: none, and the number of names
LABELS = {"shape": len(SHAPES) + 1, "color": len(COLORS) + 1, "value": HIGHEST + 1}
PLACES = ("row", "column")
_LEAST = 0.25  # of a patch that a part covers, for the patch to show it


def patch_labels(picture: Picture, patches: int, patch: int) -> np.ndarray:
    """The labels `[patches, patches, 3]`, int64, of the part that covers most of each patch.

    Args:
        patches: a side, in patches.
        patch: side of one in pixels.
    """
    return described(picture)[patch_parts(picture, patches, patch)]


def patch_parts(picture: Picture, patches: int, patch: int) -> np.ndarray:
    """The part that covers most of each patch, `[patches, patches]`, counted from 1; 0: none.

    Args:
        patches, patch: see `patch_labels`.
    """
    parts = np.asarray(_parts(picture, patches * patch))
    blocks = parts.reshape(patches, patch, patches, patch)
    numbers = range(1 + int(parts.max()))
    covers = np.stack([(blocks == number).mean((1, 3)) for number in numbers], -1)
    covers[..., 0] = _LEAST - 1e-9  # of no part
    return covers.argmax(-1)


def place_labels(patches: int) -> np.ndarray:
    """The row and the column of each patch `[patches, patches, 2]`, int64, counted from 1."""
    return np.moveaxis(np.indices((patches, patches)), 0, -1) + 1


def _parts(picture: Picture, resolution: int) -> Image.Image:
    """Map of parts, counted from 1; 8 bit."""
    if isinstance(picture, Chart):
        return chart_parts(picture, resolution)
    parts = Image.new("L", (resolution, resolution))
    for number, item in enumerate(picture.items, 1):
        mask, left, top = mask_of(item, resolution)
        parts.paste(number, (left, top), mask.point(lambda cover: 255 * (cover > 127)))
    return parts


def described(picture: Picture) -> np.ndarray:
    """The labels of every part `[1 + parts, 3]`; the first are of none."""
    if isinstance(picture, Scene):
        rows = [(_shape(item.shape), _color(item.color), 0) for item in picture.items]
    elif picture.form == "pie":
        tenths = [round(10 * picture.share(label)) for label in picture.labels]
        pairs = zip(picture.labels, tenths, strict=True)
        rows = [(0, _color(label), min(max(tenth, 1), HIGHEST)) for label, tenth in pairs]
    else:
        pairs = zip(picture.labels, picture.values, strict=True)
        bar = picture.form == "bar"
        rows = [(0, _color(n), v) if bar else (_shape(n), _color("black"), v) for n, v in pairs]
    return np.array([(0, 0, 0), *rows])


def _shape(name: str) -> int:
    return 1 + SHAPES.index(name)


def _color(name: str) -> int:
    return 1 + list(COLORS).index(name)
