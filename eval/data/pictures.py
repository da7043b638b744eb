"""Pictures made earlier, read from folders to be judged."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, ImageOps

from ...errors import InputError


def check_picture(path: Path) -> None:
    """Says early what would end a long run: checks a PNG's checksums, of other formats the header.

    Raises:
        InputError: missing, or no intact picture.
    """
    _open(path).close()


def read_picture(path: Path) -> Image.Image:
    """The picture as RGB, turned as its EXIF data say.

    Raises:
        InputError: missing, or no intact picture.
    """
    with _open(path) as image:
        try:
            return ImageOps.exif_transpose(image).convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise _broken(path, error) from error


def split_grid(image: Image.Image, count: int = 4) -> list[Image.Image]:
    """The first `count` of the four pictures of a 2 × 2 grid, row by row.

    Raises:
        ValueError: a side of odd length, or a count that is not 1 to 4.
    """
    width, height = image.size
    if width % 2 or height % 2 or not 1 <= count <= 4:
        raise ValueError(f"{count} pictures can't lie in a 2 × 2 grid of {width} × {height}")
    w, h = width // 2, height // 2
    corners = [(0, 0), (w, 0), (0, h), (w, h)][:count]
    return [image.crop((x, y, x + w, y + h)) for x, y in corners]


def _open(path: Path) -> Image.Image:
    try:
        with Image.open(path) as image:
            image.verify()  # checksums; the image is of no use afterwards
        return Image.open(path)
    except FileNotFoundError as error:
        raise InputError(f"no picture {path}") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise _broken(path, error) from error


def _broken(path: Path, error: Exception) -> InputError:
    first = (str(error) or type(error).__name__).splitlines()[0]
    return InputError(f"{path} is no intact picture ({first}): generate it again")
