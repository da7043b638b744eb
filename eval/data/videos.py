"""Videos that the user has: folders of frames or files, with a prompt each."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import InputError, absent
from ...picture import BACKGROUND, open_picture
from .folders import read_images
from .records import read_records

SUFFIXES = (".mp4", ".webm", ".gif")


@dataclass(frozen=True)
class Video:
    """A video that is not yet decoded.

    Attributes:
        name: its file or folder.
        metadata: its line of the prompts: `prompt`, maybe `include` with a `motion`.
        path: a file, or a folder whose pictures are the frames in order of their names.
        background: of frames that are transparent.
    """

    name: str
    metadata: dict[str, Any]
    path: Path
    background: str = BACKGROUND

    def frames(self) -> list[Image.Image]:
        """The frames in order.

        Raises:
            InputError: a frame, or the file, can't be decoded.
        """
        if self.path.is_dir():
            folder = read_images(self.path, self.background)
            return [folder.files[name].load() for name in folder.ids]
        if not importlib.util.find_spec("imageio"):
            raise absent(f"{self.path}: video files need imageio", "video")
        import imageio.v3 as iio

        try:
            return [open_picture(frame, self.background) for frame in iio.imiter(self.path)]
        except (OSError, ValueError) as error:
            raise InputError(f"can't decode {self.path}: {error}") from error


def read_videos(folder: Path, prompts: Path, background: str = BACKGROUND) -> list[Video]:
    """The videos of a folder.

    Args:
        prompts: JSON lines with `video`, the name of a file or of a folder of frames, and `prompt`.
        background: of frames that are transparent.

    Raises:
        InputError: a line is none, a video is missing, named twice, or without a prompt.
    """
    if not folder.is_dir():
        raise InputError(f"no folder {folder}")
    videos: dict[str, Video] = {}
    for record in read_records(prompts):
        name, path = record.text("video"), folder / record.text("video")
        if name in videos:
            raise record.error(f"video {name} is there already")
        if not path.is_dir() and path.suffix.lower() not in SUFFIXES:
            raise record.error(f"{path} is neither a folder of frames nor {', '.join(SUFFIXES)}")
        if not path.exists():
            raise record.error(f"there is no {path}")
        record.text("prompt")
        videos[name] = Video(name, dict(record.fields), path, background)
    found = {p.name for p in folder.iterdir() if p.is_dir() or p.suffix.lower() in SUFFIXES}
    if found - videos.keys():
        raise InputError(f"{folder / min(found - videos.keys())} has no line in {prompts}")
    return list(videos.values())
