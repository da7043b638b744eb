"""Video files: those that the user has, with a prompt each, and those that are written."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ...errors import InputError, absent
from ...files import atomic
from ...picture import BACKGROUND, open_picture
from ...rewards.base import Images, to_pil
from .folders import read_images
from .records import read_records

Encoder = Callable[[list[Image.Image], Path, int], None]
"""Encodes frames into an .mp4 file at a number of frames a second."""

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


def write_video(frames: Images, path: Path, fps: int, encode: Encoder) -> None:
    """Encodes frames into `path`, whole or not at all."""
    # by way of a short name (the final one may be as long as allowed) with the suffix that tells
    # encoders the container
    with atomic(path, path.with_name(f".{os.getpid()}.part.mp4")) as part:
        encode(to_pil(frames), part, fps)


def default_encoder() -> Encoder:
    """Diffusers' `export_to_video`.

    Raises:
        InputError: what it needs is not installed.
    """
    # where imageio is installed Diffusers does not fall back on OpenCV
    needed = "imageio_ffmpeg" if importlib.util.find_spec("imageio") else "cv2"
    if not importlib.util.find_spec(needed):
        raise absent("no video encoder is installed", "video")

    def encode(frames: list[Image.Image], path: Path, fps: int) -> None:
        from diffusers.utils import export_to_video

        # sides need only be even; by default they would be scaled to multiples of 16
        export_to_video(frames, str(path), fps=fps, macro_block_size=2)

    return encode
