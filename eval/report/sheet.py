"""Random samples of a method on one picture, each with its prompt and what the judge said.

Nobody chose them by eye: they are drawn with a seed, as many as will be seen.
"""

from __future__ import annotations

import io
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ...errors import InputError
from ...files import write_atomic
from ...registry import check_name
from .samples import QualitySample, read_samples, stored_picture

SIDE, GAP, COLUMNS = 192, 12, 6  # px of a cell's width; cells in a line
LINE, LETTERS = 15, 31  # px of a line of text, and its letters
FORMATS = {".png": "PNG", ".webp": "WEBP", ".jpg": "JPEG"}
QUALITY = 85  # of what is not PNG
ASKED, TOLD, RIGHT, WRONG = "#5f6368", "#202124", "#1b7837", "#b2182b"


def sample_sheet(folder: Path, method: str, count: int = 24, seed: int = 0) -> Image.Image:
    """Put random outputs of a method in a run on one picture.

    Args:
        folder: of the run.
        method: as the run's samples name it, such as `plain`, or `plain@greedy` of answers.
        count: of samples; all, if there are fewer.
        seed: of the choice.

    Raises:
        InputError: the run has no outputs of such a method, or a picture of them is gone.
    """
    judged = read_samples(folder).quality
    if not judged:
        raise InputError(f"{folder} holds no judged samples; name a folder of `mmspec eval run`")
    check_name("method", method, list(judged))
    samples = [judged[method][key] for key in sorted(judged[method])]
    chosen = sorted(np.random.default_rng(seed).permutation(len(samples))[:count].tolist())
    # a metric that says yes or no, of every sample
    binary = {0, 1}.issuperset(score for s in samples for score in list(s.scores.values())[:1])
    return _arranged([_cell(samples[number], folder, binary) for number in chosen])


def write_sheet(sheet: Image.Image, path: Path) -> Path:
    """Write it as PNG, WebP or JPEG, whichever the name ends in; returns the path.

    Raises:
        InputError: it ends in something else.
    """
    kind = FORMATS.get(path.suffix.lower())
    if kind is None:
        raise InputError(f"can't write {path}: its name must end in {', '.join(FORMATS)}")
    file = io.BytesIO()
    sheet.save(file, format=kind, quality=QUALITY)
    return write_atomic(path, file.getvalue())


def _cell(sample: QualitySample, folder: Path, binary: bool) -> Image.Image:
    """A sample: the output, or what was asked about, above its texts."""
    picture = stored_picture(folder, sample.picture or sample.shown)
    if picture is None:
        raise InputError(f"{folder} lacks the picture of sample {sample.index}; run it again")
    scale = min(SIDE / picture.width, SIDE / picture.height)
    size = round(picture.width * scale), round(picture.height * scale)
    picture = picture.resize(size, Image.Resampling.LANCZOS)
    texts = [(sample.prompt, ASKED)]
    if sample.text is not None:
        texts.append((sample.text, TOLD))
    if sample.scores:
        texts.append(_verdict(sample, binary))
    lines = [(line, colour) for text, colour in texts for line in wrap(text, LETTERS)]
    cell = Image.new("RGB", (SIDE, picture.height + LINE * len(lines) + 4), "white")
    cell.paste(picture, ((SIDE - picture.width) // 2, 0))
    write: Any = ImageDraw.Draw(cell).text
    for number, (line, colour) in enumerate(lines):
        place = 0, picture.height + 4 + LINE * number
        write(place, line, colour, ImageFont.load_default(12))
    return cell


def _verdict(sample: QualitySample, binary: bool) -> tuple[str, str]:
    """The sample's first score in words, and their colour."""
    metric, score = next(iter(sample.scores.items()))
    if not binary:
        return f"{metric} {score:.2f}", TOLD
    wrong = f"wrong: {sample.reason}" if sample.reason else "wrong"
    return ("right", RIGHT) if score else (wrong, WRONG)


def _arranged(cells: list[Image.Image]) -> Image.Image:
    """Cells in reading order on white, for a page may be dark."""
    columns = min(COLUMNS, len(cells))
    rows = [cells[start : start + columns] for start in range(0, len(cells), columns)]
    heights = [max(cell.height for cell in row) + GAP for row in rows]
    sheet = Image.new("RGB", (GAP + columns * (SIDE + GAP), GAP + sum(heights)), "white")
    top = GAP
    for row, height in zip(rows, heights, strict=True):
        for column, cell in enumerate(row):
            sheet.paste(cell, (GAP + column * (SIDE + GAP), top))
        top += height
    return sheet
