"""Bar, line and pie charts labelled by colours and shapes: dense pictures with exact answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from PIL import Image, ImageDraw

from .render import paint
from .scene import BACKGROUNDS, Item
from .vocabulary import COLORS, SHAPES, Split

Form = Literal["bar", "line", "pie"]
FORMS: tuple[Form, ...] = ("bar", "line", "pie")
PARTS = {"bar": "bar", "line": "point", "pie": "slice"}  # what a form is made of
HIGHEST = 9  # values are 1 to 9, so that a digit writes them
_OVERSAMPLE = 4
_LEFT, _RIGHT, _TOP, _BOTTOM = 0.13, 0.98, 0.06, 0.84  # of the plot, in sides of the picture
_PIE = (0.08, 0.08, 0.92, 0.92)  # its box
_DARK = (60, 60, 64)
_COLOR_NAMES = tuple(COLORS)
_DIGITS = (  # three by five pixels each, row by row
    "111101101101111", "010110010010111", "111001111100111", "111001111001111", "101101111001001",
    "111100111001111", "111100111101111", "111001010010010", "111101111101111", "111101111001111",
)  # fmt: skip


@dataclass(frozen=True)
class Chart:
    """A chart of 3 to 5 distinct values.

    Attributes:
        form: what it is drawn as.
        labels: one for each value: colours of bars and slices, shapes under the points of a line.
        values: 1 to 9; a slice's share is its value over their sum.
        line: colour of a line.
        ground: RGB behind it.
        written: whether every bar or point has its value written at it.
        turn: where the first slice starts, in degrees.
    """

    form: Form
    labels: tuple[str, ...]
    values: tuple[int, ...]
    line: str
    ground: tuple[int, int, int]
    written: bool
    turn: float

    def value(self, label: str) -> int:
        """The value that a label stands for."""
        return self.values[self.labels.index(label)]

    def share(self, label: str) -> float:
        """The part of the whole that it is."""
        return self.value(label) / sum(self.values)

    def ordered(self) -> list[str]:
        """Labels from the highest value to the lowest."""
        return sorted(self.labels, key=self.value, reverse=True)


def held_out_value(label: str, value: int) -> bool:
    """A fifth of the label × value pairs: in no chart of training."""
    place = SHAPES.index(label) if label in SHAPES else _COLOR_NAMES.index(label)
    return (3 * value + place) % 5 == 0


def sample_chart(rng: np.random.Generator, form: Form, split: Split = "train") -> Chart:
    """A chart without any pair of label and value that is held out, or with at least one."""
    names = SHAPES if form == "line" else _COLOR_NAMES
    while True:
        n = int(rng.integers(3, 6))
        labels = tuple(names[int(i)] for i in rng.permutation(len(names))[:n])
        values = tuple(int(v) + 1 for v in rng.permutation(HIGHEST)[:n])
        unseen = any(held_out_value(*pair) for pair in zip(labels, values, strict=True))
        if unseen == (split == "held_out"):
            break
    base = BACKGROUNDS[int(rng.integers(len(BACKGROUNDS)))]
    r, g, b = (int(tone) for tone in np.array(base) + rng.integers(-6, 7, 3))
    line = _COLOR_NAMES[int(rng.integers(len(_COLOR_NAMES)))]
    return Chart(
        form, labels, values, line, (r, g, b), bool(rng.random() < 0.5), float(rng.uniform(0, 360))
    )


def render_chart(chart: Chart, resolution: int = 128) -> np.ndarray:
    """The chart as RGB `[resolution, resolution, 3]`, uint8."""
    side = resolution * _OVERSAMPLE
    big = Image.new("RGB", (side, side), chart.ground)
    draw = ImageDraw.Draw(big)
    if chart.form == "pie":
        for color, wedge in zip(chart.labels, _wedges(chart), strict=True):
            draw.pieslice(_box(_PIE, side), *wedge, fill=COLORS[color])
    else:
        _axes(draw, side)
        (_bars if chart.form == "bar" else _line)(draw, chart, side)
    picture = big.reduce(_OVERSAMPLE)
    if chart.form == "line":
        for x, shape in zip(_centres(chart), chart.labels, strict=True):
            paint(picture, Item(shape, "black", x, 0.92, 0.13, 0.0, COLORS["black"]))
    return np.asarray(picture)


def chart_parts(chart: Chart, resolution: int) -> Image.Image:
    """Map of parts: 8 bit, `i + 1` where value `i` is drawn or its label stands, else 0."""
    parts = Image.new("L", (resolution, resolution))
    draw = ImageDraw.Draw(parts)
    if chart.form == "pie":
        for number, wedge in enumerate(_wedges(chart), 1):
            draw.pieslice(_box(_PIE, resolution), *wedge, fill=number)
        return parts
    half = _half(chart) if chart.form == "bar" else 0.065
    for number, (x, value) in enumerate(zip(_centres(chart), chart.values, strict=True), 1):
        top = _height(value)
        box = (x - half, top, x + half, _BOTTOM)
        if chart.form == "line":
            box = (x - half, top - half, x + half, top + half)
            label = (x - half, 0.92 - half, x + half, 0.92 + half)
            draw.rectangle(_box(label, resolution), number)
        draw.rectangle(_box(box, resolution), number)
    return parts


def _box(fractions: tuple[float, ...], side: int) -> list[float]:
    return [fraction * side for fraction in fractions]


def _half(chart: Chart) -> float:
    """Half the width of a bar."""
    return 0.36 * (_RIGHT - _LEFT) / len(chart.values)


def _wedges(chart: Chart) -> Iterator[tuple[float, float]]:
    """Start and end of every slice, in degrees."""
    start = chart.turn
    for label in chart.labels:
        end = start + 360 * chart.share(label)
        yield start, end
        start = end


def _height(value: float) -> float:
    """Height of a value on the axis, which runs from 0 to 10."""
    return _BOTTOM - (_BOTTOM - _TOP) * value / 10


def _centres(chart: Chart) -> list[float]:
    step = (_RIGHT - _LEFT) / len(chart.values)
    return [_LEFT + step * (i + 0.5) for i in range(len(chart.values))]


def _axes(draw: ImageDraw.ImageDraw, side: int) -> None:
    thin = max(1, side // 160)
    for value in range(11):
        y = _height(value) * side
        reach = _RIGHT if value in (0, 5) else _LEFT + 0.015
        draw.line([(_LEFT * side, y), (reach * side, y)], _DARK, thin)
    draw.line([(_LEFT * side, _TOP * side), (_LEFT * side, _BOTTOM * side)], _DARK, thin)
    for value in (0, 5):
        _digit(draw, value, 0.065, _height(value), side)


def _bars(draw: ImageDraw.ImageDraw, chart: Chart, side: int) -> None:
    half = _half(chart)
    for x, color, value in zip(_centres(chart), chart.labels, chart.values, strict=True):
        top = _height(value)
        draw.rectangle(_box((x - half, top, x + half, _BOTTOM), side), COLORS[color])
        if chart.written:
            _digit(draw, value, x, top - 0.05, side)


def _line(draw: ImageDraw.ImageDraw, chart: Chart, side: int) -> None:
    points = [(x, _height(v)) for x, v in zip(_centres(chart), chart.values, strict=True)]
    color = COLORS[chart.line]
    draw.line([(x * side, y * side) for x, y in points], color, side // 50, joint="curve")
    reach = 0.028
    for (x, y), value in zip(points, chart.values, strict=True):
        draw.ellipse(_box((x - reach, y - reach, x + reach, y + reach), side), color)
        if chart.written:
            _digit(draw, value, x, y - 0.07, side)


def _digit(draw: ImageDraw.ImageDraw, digit: int, x: float, y: float, side: int) -> None:
    """A digit about a point, with pixels of a 64th of the side."""
    pixel = side / 64
    left, top = x * side - 1.5 * pixel, y * side - 2.5 * pixel
    for index, on in enumerate(_DIGITS[digit]):
        if on == "1":
            column, row = left + index % 3 * pixel, top + index // 3 * pixel
            draw.rectangle((column, row, column + pixel - 1, row + pixel - 1), _DARK)
