"""Writes videos under the names that VBench and the users of MovieGenVideoBench look for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import read_object, read_text, to_json, write_json
from ...rewards.base import Images
from .videos import Encoder, default_encoder, write_video

VBENCH_SAMPLES = 5  # videos a prompt
_LONGEST_NAME = 255  # bytes, on common file systems


@dataclass(frozen=True)
class VideoFile:
    """Video to make: its prompt, its number among that prompt's videos, and its file's name."""

    prompt: str
    sample: int
    name: str


def read_prompts(path: str | Path) -> list[str]:
    """The prompts of a file with one a line, as VBench and MovieGenVideoBench have them.

    Raises:
        InputError: the file can't be read or is empty, or a line is blank: prompts go by number.
    """
    path = Path(path)
    prompts = [line.strip() for line in read_text(path).rstrip().split("\n")]
    for number, prompt in enumerate(prompts, 1):
        if not prompt:
            raise InputError(f"{path}:{number}: a line without a prompt: remove it")
    return prompts


def vbench_files(prompts: Sequence[str], samples: int = VBENCH_SAMPLES) -> list[VideoFile]:
    """Names for VBench: `{prompt}-{index}.mp4`, for each prompt `samples` in a row.

    VBench looks a prompt up by exactly this name, so nothing in it is replaced: a prompt that can't
    be a file's name can't be exported. Its own prompts all can.

    Raises:
        InputError: a prompt with a slash, too long, or there twice.
    """
    seen: dict[str, int] = {}
    for number, prompt in enumerate(prompts, 1):
        longest = f"{prompt}-{samples - 1}.mp4"
        if "/" in prompt or "\0" in prompt or len(longest.encode()) > _LONGEST_NAME:
            raise InputError(
                f"prompt {number} can't be a file's name, as VBench needs (no slash, at most"
                f" {_LONGEST_NAME} bytes): {prompt[:60]!r}"
            )
        if prompt in seen:
            raise InputError(f"prompts {seen[prompt]} and {number} are the same: {prompt[:60]!r}")
        seen[prompt] = number
    return [VideoFile(p, i, f"{p}-{i}.mp4") for p in prompts for i in range(samples)]


def moviegen_files(
    prompts: Sequence[str], samples: int = 1, variant: str = "regular"
) -> list[VideoFile]:
    """Names for MovieGenVideoBench: `{line}-{index}_{variant}.mp4`, lines counted from 0.

    The benchmark itself names no files. These are Self-Forcing's (`inference.py` with
    `--save_with_index`), whose variants are `regular` and `ema`; the prompts' order is the file's.
    """
    if not variant or "/" in variant:
        raise InputError(f"variant {variant!r} can't be part of a file's name")
    return [
        VideoFile(prompt, i, f"{line}-{i}_{variant}.mp4")
        for line, prompt in enumerate(prompts)
        for i in range(samples)
    ]


def export_videos(
    folder: str | Path,
    files: Sequence[VideoFile],
    generate: Callable[[VideoFile], Images],
    fps: int,
    *,
    settings: dict[str, Any],
    resume: bool = False,
    encoder: Encoder | None = None,
) -> list[Path]:
    """Makes the videos that are not there yet; returns the paths of those made now.

    A file is complete or absent. `settings` are kept in `<folder>.json`, beside the folder (VBench
    takes the kind of all files from any one in it), and a resumed run must have the same.

    Args:
        folder: where the videos go.
        files: what to make.
        generate: gives the frames of one video, uint8 `[T, 3, H, W]` or PIL.
        fps: frames a second.
        settings: what the videos hang on: model, method, seed and so on, as JSON values.
        resume: go on with an interrupted run; without it files must not be there.
        encoder: writes one file; by default Diffusers' `export_to_video`.

    Raises:
        InputError: no encoder is installed, files are there already, or their settings differ.
    """
    folder = Path(folder)
    encode = encoder or default_encoder()
    there = [file for file in files if (folder / file.name).exists()]
    record = folder.with_name(folder.name + ".json")
    if there and not resume:
        raise InputError(
            f"{folder / there[0].name} is there already ({len(there)} of {len(files)} videos):"
            " resume the run, or take another folder"
        )
    _keep_settings(record, {**settings, "fps": fps}, bool(there))
    folder.mkdir(parents=True, exist_ok=True)
    done = {file.name for file in there}
    made: list[Path] = []
    for file in files:
        if file.name not in done:
            made.append(folder / file.name)
            write_video(generate(file), made[-1], fps, encode)
    return made


def _keep_settings(record: Path, settings: dict[str, Any], must_exist: bool) -> None:
    """Writes the settings, or checks that they are those that the videos were made with."""
    wanted = json.loads(to_json(settings))
    if not must_exist:
        write_json(record, wanted)
        return
    kept = read_object(record)
    different = sorted(k for k in wanted.keys() | kept.keys() if wanted.get(k) != kept.get(k))
    if different:
        name = different[0]
        raise InputError(
            f"{record}: the videos there have {name} {kept.get(name)!r}, this run"
            f" {wanted.get(name)!r}: take another folder"
        )
