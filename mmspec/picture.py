"""Pictures as users hand them over: opened whole, in RGB, or refused in one line."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps

from .errors import InputError

MOST_PIXELS = 50_000_000  # of one picture; more would take gigabytes before any model sees it

Picture = Image.Image | str | Path


def open_picture(picture: Picture) -> Image.Image:
    """The picture in RGB, turned as its EXIF data say.

    Args:
        picture: opened already, or the path of a file.

    Raises:
        InputError: no file, no picture, a truncated one, or one of more than `MOST_PIXELS`.
    """
    if isinstance(picture, Image.Image):
        return _whole(picture, "the picture")
    try:
        with Image.open(picture) as opened:
            return _whole(opened, str(picture))
    except FileNotFoundError as error:
        raise InputError(f"no picture {picture}") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        if isinstance(error, InputError):
            raise
        raise _unreadable(str(picture), error) from error


def _whole(image: Image.Image, name: str) -> Image.Image:
    if image.width * image.height > MOST_PIXELS:
        raise InputError(
            f"{name} has {image.width}×{image.height} pixels, more than {MOST_PIXELS:,}; make it "
            "smaller first"
        )
    try:
        return ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> InputError:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return InputError(f"can't read {name} as a picture: {first}")
