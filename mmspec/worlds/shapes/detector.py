"""Finds the coloured shapes in a picture by rule: smooth background, palette colour, best template.

Made for rendered scenes and for what a generator makes of them: soft edges, washed colours and
faint blotches are expected, so every threshold sits halfway between an object and its background.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from .render import render
from .scene import Background, Item, Scene
from .vocabulary import COLORS, SHAPES

Array = npt.NDArray[Any]
Seed = tuple[Array, int]  # inner pixels [H, W] of an object, index of its colour

_SIDE = 128  # every picture is brought to this side first; lengths below are in its pixels
_MIN_SHARE = 0.4  # of the object's colour in a pixel of the object, the rest being background
_MIN_CORE = 16  # pixels of one colour that can seed an object
_MIN_AREA = 60.0  # anything smaller is a blotch
_MAX_SPAN = 96  # anything larger is a flooded picture: the largest object spans 77
_FULL_AREA = 240.0  # the world's smallest object, a star, has 400; below this confidence fades
# Overlap with the best template: intact objects reach 0.97, a 3:2 ellipse or a lone arc 0.8. A
# lead under _CLEAR_LEAD over the second shape halves the confidence by degrees.
_NO_FIT, _FULL_FIT, _CLEAR_LEAD = 0.75, 0.95, 0.04
_REACH = 12  # how far from its seed an object may go: a star's tip is the farthest part
_CELLS = 32  # side of the grid on which outlines are compared
_EXTENT = 2.3  # half side of that grid, in radii of gyration
_TURNS = (-8.0, -4.0, 0.0, 4.0, 8.0)  # degrees; objects are drawn within ±8
_BLURS = (0.02, 0.08, 0.14)  # of half the object's side
_PALETTE: Array = np.array(list(COLORS.values()), np.float32)  # [K, 3]
_NAMES = tuple(COLORS)


@dataclass(frozen=True)
class Detection:
    """Object in a picture; `box` is `(x0, y0, x1, y1)` in pixels, upper ends exclusive.

    `confidence` is 1 for an outline that matches its template and 0 for one that matches none.
    """

    shape: str
    color: str
    box: tuple[float, float, float, float]
    confidence: float

    @property
    def label(self) -> str:
        """The object's class, the name that every detector has for it."""
        return self.shape


def detect(picture: Array) -> list[Detection]:
    """Detect all objects in an RGB picture `[H, W, 3]` (uint8), the most confident first."""
    return read(picture)[0]


def read(picture: Array) -> tuple[list[Detection], Array]:
    """Detect all objects, with the colour of each pixel at a longer side of 128.

    Returns:
        What `detect` gives; indices into `COLORS` `[h, w]`, int8, -1 for background.
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or picture.dtype != np.uint8:
        raise ValueError(f"expected uint8 [H, W, 3], got {picture.dtype} {list(picture.shape)}")
    scale = max(picture.shape[:2]) / _SIDE
    pixels = _resized(picture, scale)
    background = _background(pixels)
    labels, foreground = _label_colors(pixels, background)
    apart = _seeds(labels, foreground)
    joined = _joined(apart, foreground)
    readings = [apart, joined] if len(joined) < len(apart) else [apart]
    found = [_detections(pixels, background, foreground, seeds, scale) for seeds in readings]
    best = max(found, key=lambda hits: sum(hit.confidence for hit in hits) / max(len(hits), 1))
    colors = np.where(foreground, labels, -1).astype(np.int8)
    return sorted(best, key=lambda hit: -hit.confidence), colors


def _resized(picture: Array, scale: float) -> Array:
    """The picture with its longer side at `_SIDE`, float32 `[H, W, 3]`."""
    image = Image.fromarray(np.ascontiguousarray(picture))
    if scale != 1:
        width, height = (max(1, round(side / scale)) for side in image.size)
        method = Image.Resampling.BOX if scale >= 2 else Image.Resampling.BICUBIC
        image = image.resize((width, height), method)
    return np.asarray(image, np.float32)


def _background(pixels: Array) -> Array:
    """A quadratic surface per channel, fitted to low-chroma middle tones, outliers dropped."""
    y, x = np.indices(pixels.shape[:2], np.float32) / _SIDE - 0.5
    basis = np.stack([np.ones_like(x), x, y, x * y, x * x, y * y], -1)
    sample, points = pixels[::3, ::3].reshape(-1, 3), basis[::3, ::3].reshape(-1, 6)
    luma, chroma = sample.mean(-1), np.ptp(sample, -1)
    near = (luma > 75) & (luma < 208) & (chroma < 56)
    ridge = 1e-2 * np.diag([0, 1, 1, 1, 1, 1]).astype(np.float32)  # few points: a flat surface
    fit = np.zeros((6, 3), np.float32)
    fit[0] = 145
    for limit in (48, 36, 30):  # the texture's amplitude is up to 17
        if near.sum() < 12:
            break
        kept = points[near]
        fit = np.linalg.solve(kept.T @ kept + ridge, kept.T @ sample[near])
        near = np.abs(sample - points @ fit).max(-1) < limit
    return np.asarray(np.clip(basis @ fit, 80, 200))


def _label_colors(pixels: Array, background: Array) -> tuple[Array, Array]:
    """Palette colour of each pixel, and where there is enough of it not to be background.

    A blurred or washed pixel lies between the background and its colour, so the colour is the one
    whose segment from the background passes nearest (white over grey would else look pink).
    """
    flat, behind = pixels.reshape(-1, 3), background.reshape(-1, 3)
    offset = flat - behind
    length = (_PALETTE**2).sum(-1) - 2 * behind @ _PALETTE.T + (behind**2).sum(-1)[:, None]
    along = offset @ _PALETTE.T - (offset * behind).sum(-1)[:, None]  # offset . (colour - behind)
    share = along / length
    near = np.clip(share, _MIN_SHARE, 1)
    gap = near * (near * length - 2 * along)  # squared distance to the segment, less |offset|^2
    labels = gap.argmin(-1)
    foreground = share[np.arange(len(flat)), labels] > _MIN_SHARE
    shape = pixels.shape[:2]
    return labels.reshape(shape), foreground.reshape(shape)


def _seeds(labels: Array, foreground: Array) -> list[Seed]:
    """Masks `[H, W]` of the inner pixels of each object, with the index of its colour.

    Eroding first removes the rim, whose mixed pixels look like a third colour, and cuts thin
    bridges between neighbours.
    """
    from scipy import ndimage

    core = ndimage.binary_erosion(foreground, iterations=2, border_value=1)
    parts, count = ndimage.label(core)
    seeds: list[Seed] = []
    for part in range(1, count + 1):
        inside = parts == part
        sizes = np.bincount(labels[inside], minlength=len(_NAMES))
        large = np.flatnonzero(sizes > max(_MIN_CORE * 3, 0.2 * sizes.sum()))
        if len(large) < 2:
            if sizes.sum() >= _MIN_CORE:
                seeds.append((inside, int(sizes.argmax())))
            continue
        for color in large:  # two objects that touch, or one painted in two colours
            pieces, n = ndimage.label(ndimage.binary_opening(inside & (labels == color)))
            masks = [pieces == piece for piece in range(1, n + 1)]
            seeds += [(mask, int(color)) for mask in masks if mask.sum() >= _MIN_CORE * 2]
    return seeds


def _joined(seeds: list[Seed], foreground: Array) -> list[Seed]:
    """The seeds with those of one connected body united: blotches may have cut one object."""
    from scipy import ndimage

    bodies, _ = ndimage.label(foreground)
    groups: dict[int, list[Seed]] = {}
    for mask, color in seeds:
        groups.setdefault(int(bodies[mask][0]), []).append((mask, color))
    joined = []
    for group in groups.values():
        _, color = max(group, key=lambda seed: int(seed[0].sum()))
        joined.append((np.logical_or.reduce([mask for mask, _ in group]), color))
    return joined


def _detections(
    pixels: Array, background: Array, foreground: Array, seeds: list[Seed], scale: float
) -> list[Detection]:
    """Detect at most one object per seed: the pixels nearest to it, weighed by its colour."""
    from scipy import ndimage

    if not seeds:
        return []
    owner = np.zeros(foreground.shape, np.int32)
    for index, (mask, _) in enumerate(seeds):
        owner[mask] = index + 1
    distance, nearest = ndimage.distance_transform_edt(owner == 0, return_indices=True)
    owner = np.where(distance < _REACH, owner[tuple(nearest)], 0)
    near = ndimage.binary_dilation(foreground, iterations=2)
    found: list[Detection] = []
    for index, (mask, color) in enumerate(seeds):
        mine = (owner == index + 1) & near
        rows, columns = np.flatnonzero(mine.any(1)), np.flatnonzero(mine.any(0))
        crop = np.s_[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        behind = background[crop]
        # the colour as it is here, washed or not: its share in a pixel is the object's coverage
        step = np.median(pixels[mask], axis=0) - behind
        share = ((pixels[crop] - behind) * step).sum(-1) / np.maximum((step**2).sum(-1), 1)
        coverage = _steeper(share) * mine[crop]
        found += _classify(coverage, (int(rows[0]), int(columns[0])), _NAMES[color], scale)
    return found


def _classify(
    coverage: Array, corner: tuple[int, int], color: str, scale: float
) -> list[Detection]:
    """The object whose soft mask `[h, w]` has its upper left at `corner`, if of a possible size."""
    area = float(coverage.sum())
    solid = coverage > 0.5
    rows, columns = np.flatnonzero(solid.any(1)), np.flatnonzero(solid.any(0))
    if area < _MIN_AREA or not len(rows) or max(np.ptp(rows), np.ptp(columns)) > _MAX_SPAN:
        return []
    overlap = _overlaps(_normalised(coverage))
    second, best = (int(index) for index in overlap.argsort()[-2:])
    top, left = corner
    box = (
        float(left + columns[0]) * scale,
        float(top + rows[0]) * scale,
        float(left + columns[-1] + 1) * scale,
        float(top + rows[-1] + 1) * scale,
    )
    fit = np.clip((overlap[best] - _NO_FIT) / (_FULL_FIT - _NO_FIT), 0, 1)
    clear = np.clip(0.5 + 0.5 * (overlap[best] - overlap[second]) / _CLEAR_LEAD, 0, 1)
    confidence = float(fit * clear) * min(1.0, area / _FULL_AREA)
    return [Detection(SHAPES[best], color, box, confidence)]


def _steeper(share: Array) -> Array:
    """Cuts what texture adds outside and takes inside, and undoes part of the blur."""
    return np.asarray(np.clip((share - 0.25) / 0.5, 0, 1))


def _normalised(coverage: Array) -> Array:
    """The mask on a `[_CELLS * _CELLS]` grid about its centroid, radius of gyration one."""
    from scipy import ndimage

    area = coverage.sum()
    y, x = np.arange(coverage.shape[0]), np.arange(coverage.shape[1])
    down, across = coverage.sum(1), coverage.sum(0)
    cy, cx = (down @ y) / area, (across @ x) / area
    radius = math.sqrt((down @ (y - cy) ** 2 + across @ (x - cx) ** 2) / area)
    steps = np.linspace(-_EXTENT, _EXTENT, _CELLS) * max(radius, 1)
    at = np.meshgrid(cy + steps, cx + steps, indexing="ij")
    return np.asarray(ndimage.map_coordinates(coverage, at, order=1).ravel())


def _overlaps(mask: Array) -> Array:
    """Soft intersection over union with the best template of each shape, `[len(SHAPES)]`."""
    templates, energy = _templates()
    common = templates @ mask
    overlap = common / (energy + mask @ mask - common)
    return np.asarray(overlap.reshape(len(SHAPES), -1).max(-1))


@cache
def _templates() -> tuple[Array, Array]:
    """Normalised outlines, the turns and blurs of each shape adjacent, and their squared norms."""
    from scipy import ndimage

    side, size = 192, 2 / 3
    black = Background((0, 0, 0), (0, 0, 0), 0.0, "plain", 0.0, 1.0, 0.0, 0)
    rows = []
    for shape, turn in itertools.product(SHAPES, _TURNS):
        item = Item(shape, "white", 0.5, 0.5, size, turn, (255, 255, 255))
        drawn = render(Scene((item,), black), side)[..., 0] / 255
        blurred = (ndimage.gaussian_filter(drawn, blur * side * size / 2) for blur in _BLURS)
        rows += [_normalised(_steeper(mask)) for mask in blurred]
    templates = np.stack(rows).astype(np.float32)
    return templates, (templates**2).sum(-1)
