"""Folders of pictures, read strictly: a file that can't be part of the set is an error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from PIL import Image

from ...errors import InputError
from ...picture import BACKGROUND, WEB_FORMATS, check_picture, open_picture

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class ImageFile:
    """A picture that is not yet decoded; where it is transparent the background shows."""

    path: Path
    background: str = BACKGROUND

    @cached_property
    def size(self) -> tuple[int, int]:
        """`(width, height)` of what is loaded.

        Raises:
            InputError: see `load`.
        """
        return self.load().size

    def load(self) -> Image.Image:
        """The picture, see `open_picture`.

        Raises:
            InputError: truncated or corrupt.
        """
        return open_picture(self.path, self.background, formats=WEB_FORMATS)


@dataclass(frozen=True)
class ImageFolder:
    """The pictures of a folder by id, sorted; the id is the path in the folder without suffix."""

    folder: Path
    files: dict[str, ImageFile]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def ids(self) -> list[str]:
        """Sorted ids."""
        return list(self.files)

    def batches(self, size: int) -> Iterator[tuple[list[str], list[Image.Image]]]:
        """Ids and decoded pictures, at most `size` at a time; sizes of pictures may differ.

        Raises:
            InputError: a picture can't be decoded.
        """
        for first in range(0, len(self), size):
            ids = self.ids[first : first + size]
            yield ids, [self.files[name].load() for name in ids]


def read_images(folder: str | Path, background: str = BACKGROUND) -> ImageFolder:
    """The PNG, JPEG and WebP pictures in a folder and the folders in it.

    Headers are read now (of PNG files also the checksums), pixels when they are asked for. Files
    whose name begins with a dot are left out, as file managers leave them.

    Args:
        background: of pictures that are transparent.

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
        check_picture(path, WEB_FORMATS)
        files[name] = ImageFile(path, background)
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
