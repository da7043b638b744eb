"""Scenes to pictures with Pillow, antialiased by drawing each mask at four times its size."""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from PIL import Image, ImageDraw

from .scene import Background, Item, Scene

_OVERSAMPLE = 4


def render(scene: Scene, resolution: int = 128) -> np.ndarray:
    """The scene as RGB `[resolution, resolution, 3]`, uint8."""
    picture = Image.fromarray(_background(scene.background, resolution))
    for item in scene.items:
        paint(picture, item)
    return np.asarray(picture)


def paint(picture: Image.Image, item: Item) -> None:
    """Draw one object into a square picture."""
    mask, left, top = mask_of(item, picture.width)
    picture.paste(item.tint, (left, top), mask)


def outline(shape: str) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Polygons to fill and then to cut for `shape`, in a box from -1 to 1, y down."""
    if shape == "circle":
        return [_disc(0, 0, 1)], []
    if shape == "ring":
        return [_disc(0, 0, 1)], [_disc(0, 0, 0.52)]
    if shape == "crescent":
        return [_disc(0, 0, 1)], [_disc(0.52, -0.12, 0.8)]
    if shape == "square":
        return [np.array([(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)])], []
    if shape == "triangle":
        return [np.array([(0, -0.95), (1, 0.85), (-1, 0.85)])], []
    if shape == "cross":
        w = 0.33
        half = [(-w, -1), (w, -1), (w, -w), (1, -w), (1, w), (w, w)]
        return [np.array(half + [(-x, -y) for x, y in half])], []
    if shape == "star":
        radii = (1.08, 0.45) * 5
        turn = [math.pi * (k / 5 - 0.5) for k in range(10)]
        points = [
            (r * math.cos(a), r * math.sin(a) + 0.06) for r, a in zip(radii, turn, strict=True)
        ]
        return [np.array(points)], []
    if shape == "heart":
        t = np.linspace(0, 2 * np.pi, 60, endpoint=False)
        x = 16 * np.sin(t) ** 3
        y = 13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)
        return [np.stack([x / 16.5, -(y + 2.5) / 15.5], -1)], []
    raise ValueError(f"unknown shape {shape!r}")


def mask_of(item: Item, resolution: int) -> tuple[Image.Image, int, int]:
    """Coverage of the item (8 bit) and the place of its upper left corner in the picture.

    Args:
        resolution: of the picture, in pixels.
    """
    radius = item.size * resolution / 2
    reach = math.ceil(radius * 1.25) + 1
    left, top = round(item.x * resolution) - reach, round(item.y * resolution) - reach
    # the centre inside the crop keeps its fraction of a pixel
    centre = np.array([item.x * resolution - left, item.y * resolution - top])
    turn = math.radians(item.angle)
    rotation = np.array([[math.cos(turn), math.sin(turn)], [-math.sin(turn), math.cos(turn)]])
    big = Image.new("L", (2 * reach * _OVERSAMPLE,) * 2)
    draw = ImageDraw.Draw(big)
    for polygons, value in zip(outline(item.shape), (255, 0), strict=True):
        for polygon in polygons:
            points = (polygon @ rotation * radius + centre) * _OVERSAMPLE
            draw.polygon([(float(x), float(y)) for x, y in points], fill=value)
    return big.reduce(_OVERSAMPLE), left, top


def _disc(x: float, y: float, radius: float) -> np.ndarray:
    t = np.linspace(0, 2 * np.pi, 64, endpoint=False)
    return np.stack([x + radius * np.cos(t), y + radius * np.sin(t)], -1)


@cache
def _grid(resolution: int) -> tuple[np.ndarray, np.ndarray]:
    side = (np.arange(resolution, dtype=np.float32) + 0.5) / resolution
    return np.meshgrid(side, side)


def _background(background: Background, resolution: int) -> np.ndarray:
    x, y = _grid(resolution)
    along = math.cos(background.direction) * (x - 0.5) + math.sin(background.direction) * (y - 0.5)
    mix = np.clip(along / 1.2 + 0.5, 0, 1)[..., None]
    start, end = np.array(background.start, np.float32), np.array(background.end, np.float32)
    tone = start + (end - start) * mix
    tone = tone + (background.amplitude * _texture(background, x, y))[..., None]
    return np.clip(np.rint(tone), 0, 255).astype(np.uint8)


def _texture(background: Background, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """A pattern in [-1, 1] over the picture; smooth, so that no edge needs antialiasing."""
    frequency, phase = 2 * math.pi / background.period, 2 * math.pi * background.phase
    if background.texture == "stripes":
        along = math.cos(background.phase * 6) * x + math.sin(background.phase * 6) * y
        return np.asarray(np.sin(frequency * along + phase))
    if background.texture == "checks":
        waves = np.sin(frequency * x + phase) * np.sin(frequency * y + phase)
        return np.asarray(np.tanh(4 * waves))
    if background.texture == "dots":
        bumps = np.sin(frequency * x + phase) * np.sin(frequency * y + phase)
        return np.asarray(2 * np.clip(bumps, 0, 1) - 0.5)
    if background.texture == "clouds":
        grain = np.random.default_rng(background.seed).uniform(0, 255, (7, 7)).astype(np.float32)
        cloud = Image.fromarray(grain).resize(x.shape, Image.Resampling.BICUBIC)
        return np.asarray(cloud) / 127.5 - 1
    return np.zeros_like(x)
