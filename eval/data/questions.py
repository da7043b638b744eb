"""Questions about pictures, and what a model answered."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from ...errors import InputError
from ...picture import BACKGROUND, open_picture
from .records import ParquetCell

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource: TypeAlias = "Path | ParquetCell | bytes"
"""A picture that is not opened yet: a file, a place in a Parquet file, or its encoded bytes."""


@dataclass(frozen=True)
class PictureQuestion:
    """Question of a benchmark with its reference answers.

    Attributes:
        id: unique in the benchmark, as text.
        question: as the benchmark words it; MMMU's names its pictures as `<image 1>`.
        images: its pictures, unopened; usually one, none where they were not asked for.
        answers: reference answers, one or one from each annotator; none in hidden test sets.
        options: their texts, A first; none if the question is not multiple-choice.
        subject: the group that it is also scored in, or "".
        where: the file and entry that it was read from, for error messages.
    """

    id: str
    question: str
    images: tuple[ImageSource, ...] = ()
    answers: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    subject: str = ""
    where: str = ""

    @property
    def image(self) -> ImageSource | None:
        """The first picture, unopened; None if there is none."""
        return self.images[0] if self.images else None

    def open_image(self, index: int = 0, background: str = BACKGROUND) -> Image:
        """Open one of the pictures, see `open_picture`.

        Raises:
            InputError: there is no such picture, or it can't be read.
        """
        name = self.where or f"question {self.id}"
        if not 0 <= index < len(self.images):
            raise InputError(f"{name}: no image {index}; the question has {len(self.images)}")
        source = self.images[index]
        data = source.read() if isinstance(source, ParquetCell) else source
        try:
            called = f"image {index}" if isinstance(data, bytes) else None
            return open_picture(data, background, name=called)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error


@dataclass(frozen=True)
class Prediction:
    """Answer of a model to a question of a benchmark.

    Attributes:
        question_id: the `PictureQuestion.id` that it belongs to.
        answer: the text, as generated.
        where: the file and entry that it was read from, for error messages.
    """

    question_id: str
    answer: str
    where: str = ""
