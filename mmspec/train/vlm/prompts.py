"""Questions for a vision-language model, from whose answers draft heads learn."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import InputError
from ...files import parse_json, read_lines
from ...picture import check_picture, open_picture
from ...worlds.shapes.exchanges import SHORT_KINDS, draw, held_out_descriptions, sample_exchange

LONG = 0.9  # of the questions of the shapes world take a long answer: where speculation pays
CHARTS = 0.3  # of those, about charts
HELD_OUT = 16  # prompts of an evaluation at most


@dataclass(frozen=True)
class Questions:
    """Pictures and a question about each."""

    pictures: list[Image.Image]
    texts: list[str]


class ShapesPrompts:
    """Questions about scenes and charts of the shapes world; most ask for a description.

    Args:
        side: of the pictures, in pixels.

    Attributes:
        described: where they come from in a few words, for the card.
    """

    described = "the procedural shapes world, drawn afresh"

    def __init__(self, side: int) -> None:
        self.side = side

    def draw(self, rng: np.random.Generator, size: int) -> Questions:
        """`size` questions to learn from."""
        asked = Questions([], [])
        for _ in range(size):
            kind = "chart_description" if rng.random() < CHARTS else "description"
            if rng.random() >= LONG:
                kind = SHORT_KINDS[int(rng.integers(len(SHORT_KINDS)))]
            picture, exchange = sample_exchange(rng, kind)
            asked.pictures.append(Image.fromarray(draw(picture, self.side)))
            asked.texts.append(exchange.question)
        return asked

    def held_out(self) -> Questions:
        """A few that training never asks, always the same."""
        lines = list(held_out_descriptions(HELD_OUT, seed=1))  # not those of the fixed lists
        pictures = [Image.fromarray(draw(line.picture(), self.side)) for line in lines]
        return Questions(pictures, [line.question for line in lines])


class FilePrompts:
    """Questions of one's own: a file of lines `{"image": path, "question": text}`.

    One line in ten is held out, up to `HELD_OUT` of them, spread over the file.

    Args:
        path: the file; pictures' paths start at its folder.

    Raises:
        InputError: a line is no such object, its picture is not there, or there are fewer than two.
    """

    def __init__(self, path: Path) -> None:
        rows = [
            _line(path, number, line)
            for number, line in enumerate(read_lines(path), start=1)
            if line.strip()
        ]
        if len(rows) < 2:
            raise InputError(f"{path} has {len(rows)} questions; one to learn and one to hold out")
        count = max(1, min(HELD_OUT, len(rows) // 10))
        held_out = {n * len(rows) // count for n in range(count)}
        self._held_out = [row for n, row in enumerate(rows) if n in held_out]
        self._rows = [row for n, row in enumerate(rows) if n not in held_out]
        self.described = f"{len(self._rows):,} pictures with questions of {path.name}"

    def draw(self, rng: np.random.Generator, size: int) -> Questions:
        return _opened([self._rows[n] for n in rng.integers(len(self._rows), size=size)])

    def held_out(self) -> Questions:
        return _opened(self._held_out)


def _opened(rows: list[tuple[Path, str]]) -> Questions:
    return Questions([open_picture(path) for path, _ in rows], [text for _, text in rows])


def _line(path: Path, number: int, line: str) -> tuple[Path, str]:
    """A line's picture and question."""
    where = f"{path}, line {number}"
    row = parse_json(line, where)
    if not isinstance(row, dict):
        raise InputError(f'{where} must be {{"image": path, "question": text}}, not {line:.40}')
    for key in ("image", "question"):
        if not isinstance(row.get(key), str) or not row[key].strip():
            raise InputError(f"{where} has no {key}")
    picture = path.parent / row["image"]
    try:
        check_picture(picture)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return picture, row["question"]
