"""Questions about pictures: the shapes world's held-out lists, or lines of one's own."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import InputError
from ...picture import BACKGROUND, check_picture, open_picture
from ...worlds.shapes.exchanges import LONG_KINDS, HeldOut, draw, is_correct, score_long, score_step
from ..suite import Suite
from .prompts import prompt_files
from .records import Record, read_records


@dataclass(frozen=True)
class PictureQuestion:
    """A question about a picture.

    Attributes:
        prompt: the question.
        tag: its kind; "": it has none.
        answer: the true one, of a short question; None: nobody knows it.
        scene: makes the picture, and knows all that is in it; None: the picture is a file.
        path: of the picture, where it is a file.
    """

    prompt: str
    tag: str = ""
    answer: str | None = None
    scene: HeldOut | None = None
    path: str = ""

    def picture(self, side: int, background: str = BACKGROUND) -> Image.Image:
        """The picture; one that is drawn has `side` pixels, a file's may let a background through.

        Raises:
            InputError: see `open_picture`.
        """
        if self.scene is not None:
            return Image.fromarray(draw(self.scene.picture(), side))
        return open_picture(self.path, background)

    def sides(self, side: int) -> tuple[int, int]:
        """The two sides of the picture, without making or decoding it.

        Raises:
            InputError: see `check_picture`.
        """
        return (side, side) if self.scene is not None else check_picture(self.path)

    def scores(self, text: str) -> dict[str, float]:
        """Scores of an answer by metric; empty if the true answer isn't known."""
        if self.scene is not None and self.tag in LONG_KINDS:
            found = score_long(text, self.scene.picture())
            return {"truthfulness": found.truthfulness, "coverage": found.coverage}
        if self.answer is None:
            return {}
        return {"accuracy": float(is_correct(text, self.answer))}

    def score_step(self, before: str, step: str) -> float:
        """Share of what a step adds to a description that holds; NaN if nobody knows."""
        if self.scene is None or self.tag not in LONG_KINDS:
            return math.nan
        return score_step(before, step, self.scene.picture())

    def metadata(self) -> dict[str, Any]:
        return asdict(self)


def load_picture_questions(suite: Suite, path: Path | None) -> tuple[PictureQuestion, ...]:
    """The questions of a suite, or the user's."""
    return tuple(q for file in prompt_files(suite, path) for q in read_picture_questions(file))


def read_picture_questions(path: Path) -> tuple[PictureQuestion, ...]:
    """The questions of a file.

    Args:
        path: JSON lines, of the world's lists (`id`, `seed`, `kind`, `question`, `answer`), or
            `{"image": path, "question": text}` with the `answer` and its `kind` where they are
            known; pictures' paths start at the file's folder.

    Raises:
        InputError: a line is no question, its picture is not there or not what its seed makes, or
            there is no line.
    """
    found = tuple(_question(record, path.parent) for record in read_records(path))
    if not found:
        raise InputError(f"{path} holds no questions")
    return found


def _question(record: Record, folder: Path) -> PictureQuestion:
    question = record.filled("question")
    kind, answer = record.text("kind", ""), None
    if record.fields.get("answer") is not None:
        answer = record.answer("answer") or None
    if record.fields.get("image") is None and "seed" in record.fields:
        return PictureQuestion(question, kind, answer, _scene(record))
    path = folder / record.text("image")
    if not path.is_file():
        raise record.error(f"no picture {path}")
    return PictureQuestion(question, kind, answer, path=str(path))


def _scene(record: Record) -> HeldOut:
    seed = record.value("seed")
    if not (isinstance(seed, list) and len(seed) == 3 and all(isinstance(n, int) for n in seed)):
        raise record.error(f"the seed must be three whole numbers, not {seed!r}")
    texts = {name: record.text(name) for name in ("id", "kind", "question", "answer")}
    made = HeldOut(seed=tuple(seed), **texts)
    try:
        made.picture()
    except (InputError, KeyError, ValueError) as error:
        raise record.error(str(error)) from error
    return made
