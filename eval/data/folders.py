"""Folders of pictures, read strictly: a file that can't be part of the set is an error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from ...errors import InputError, reason

FORMATS = ("PNG", "JPEG", "WEBP")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class ImageFile:
    """A picture that is not yet decoded; `size` is `(width, height)`."""

    path: Path
    size: tuple[int, int]

    def load(self) -> Image.Image:
        """The picture in RGB.

        Raises:
            InputError: truncated or corrupt, see-through in places, or of more than 8 bits.
        """
        try:
            with _opened(self.path) as image:
                image.load()
                if image.mode.startswith(("I", "F")):
                    raise InputError(f"{self.path} has more than 8 bits a channel: save it with 8")
                if _see_through(image):
                    raise InputError(f"{self.path} is transparent: put it on a background first")
                return image.convert("RGB")
        except (OSError, SyntaxError, ValueError) as error:
            raise _unreadable(self.path, error) from error


@dataclass(frozen=True)
class ImageFolder:
    """The pictures of a folder by id, sorted; the id is the path in the folder without suffix."""

    folder: Path
    files: dict[str, ImageFile]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def ids(self) -> list[str]:
        """All ids, sorted."""
        return list(self.files)

    def batches(self, size: int) -> Iterator[tuple[list[str], list[Image.Image]]]:
        """Ids and decoded pictures, at most `size` at a time; sizes of pictures may differ.

        Raises:
            InputError: a picture can't be decoded.
        """
        for first in range(0, len(self), size):
            ids = self.ids[first : first + size]
            yield ids, [self.files[name].load() for name in ids]


def read_images(folder: str | Path) -> ImageFolder:
    """The PNG, JPEG and WebP pictures in a folder and the folders in it.

    Headers are read now, pixels when they are asked for. Files whose name begins with a dot are
    left out, as file managers leave them.

    Raises:
        InputError: no such folder, no pictures, a file that is none, or two files of one id.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    files: dict[str, ImageFile] = {}
    for name, path in visible_files(folder):
        if path.suffix.lower() not in SUFFIXES:
            raise InputError(f"{path} is no picture ({', '.join(SUFFIXES)}): move it elsewhere")
        if name in files:
            raise InputError(f"{files[name].path} and {path} have the same id {name!r}: keep one")
        files[name] = ImageFile(path, _size(path))
    if not files:
        raise InputError(f"no pictures in {folder} ({', '.join(SUFFIXES)})")
    return ImageFolder(folder, dict(sorted(files.items())))


def visible_files(folder: Path) -> Iterator[tuple[str, Path]]:
    """Ids and paths of a folder's files, in the order of paths; dot files are left out."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if not path.is_dir() and not any(part.startswith(".") for part in inside.parts):
            yield inside.with_suffix("").as_posix(), path


def check_paired(a: ImageFolder, b: ImageFolder) -> None:
    """Raise an `InputError` unless two folders hold the same ids, in equal sizes."""
    for here, there in ((a, b), (b, a)):
        alone = sorted(here.files.keys() - there.files.keys())
        if alone:
            raise InputError(
                f"{here.folder} ({len(here)} pictures) and {there.folder} ({len(there)}) don't "
                f"pair: {len(alone)} only in {here.folder}, the first {alone[0]!r}"
            )
    for name, file in a.files.items():
        other = b.files[name]
        if file.size != other.size:
            width, height = other.size
            raise InputError(
                f"{file.path} is {file.size[0]}×{file.size[1]} and {other.path} {width}×{height}: "
                "resize one set"
            )


def _size(path: Path) -> tuple[int, int]:
    try:
        with _opened(path) as image:
            frames = getattr(image, "n_frames", 1)
            if frames > 1 and image.format != "MPO":  # a JPEG with its preview is one picture
                raise InputError(f"{path} holds {frames} frames, not one picture")
            return image.size
    except (OSError, SyntaxError, ValueError) as error:
        raise _unreadable(path, error) from error


def _opened(path: Path) -> Image.Image:
    """The header of a picture, by content whatever the suffix says."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            return Image.open(path, formats=FORMATS)
        except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
            raise InputError(f"{path} has too many pixels to be decoded safely") from error


def _see_through(image: Image.Image) -> bool:
    """Is some pixel not opaque? Its hidden colour would be scored otherwise."""
    if "A" not in image.getbands() and "transparency" not in image.info:
        return False
    return bool(np.asarray(image.convert("RGBA"))[..., 3].min() < 255)


def _unreadable(path: Path, error: Exception) -> InputError:
    if isinstance(error, InputError):  # a ValueError that already says what to do
        return error
    return InputError(f"can't read picture {path}: {reason(error)}")
