"""`mmspec video`: the same clip by several methods, as files that show who made what."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from ..config import SpecConfig
from ..pipelines.video_sizes import VideoSizes
from .data.video_export import Encoder
from .files import png_bytes, write_atomic
from .showcase import showcase_record
from .timing import Sample, paired_runs

COLOURS = {"drafter": "#2a9d3f", "target": "#c0392b"}  # of a block's border


def film(
    pipe: Any,
    methods: dict[str, SpecConfig],
    prompt: str,
    count: int,
    seed: int,
    call: dict[str, Any],
    out: Path,
    fps: int,
    encode: Encoder | None = None,
) -> dict[str, Any]:
    """Make `count` clips by every method, in turn; returns what `stats.json` holds.

    Writes `<method>-<seed>.gif`, with an encoder `.mp4` too, `<method>-<seed>.png`, a strip that
    shows who made which block, and `stats.json`.
    """
    sizes = VideoSizes(pipe.transformer, pipe.vae)
    if len(methods) > 1:  # the first calls of a process are slow, and two blocks are enough
        warm = {**call, "num_frames": sizes.frames(2)}
        paired_runs(pipe, methods, [prompt], seed, warm, warmup=0)
    samples = paired_runs(pipe, methods, [prompt] * count, seed, call, warmup=0)
    out.mkdir(parents=True, exist_ok=True)
    files = []
    for name, rows in samples.items():
        for sample in rows:
            files += _write(sample, sizes, out / f"{name}-{sample.seed}", fps, encode)
    record = {**showcase_record(samples, prompt, seed, call), "fps": fps, "files": files}
    write_atomic(out / "stats.json", json.dumps(record, indent=2) + "\n")
    return record


def _write(
    sample: Sample, sizes: VideoSizes, path: Path, fps: int, encode: Encoder | None
) -> list[str]:
    """Files of one clip; returns their names."""
    (frames,), (made_by,) = sample.output.frames, sample.output.made_by
    ends = [0, *(sizes.frames(n + 1) for n in range(len(made_by)))]
    blocks = [(maker, frames[a:b]) for maker, (a, b) in zip(made_by, pairwise(ends), strict=True)]
    gif, sheet = path.with_name(path.name + ".gif"), path.with_name(path.name + ".png")
    frames[0].save(gif, save_all=True, append_images=frames[1:], duration=1000 / fps, loop=0)
    write_atomic(sheet, png_bytes(strip(blocks)))
    names = [gif.name, sheet.name]
    if encode is not None:
        film = path.with_name(path.name + ".mp4")
        encode(frames, film, fps)
        names.append(film.name)
    return names


def strip(blocks: list[tuple[str, list[Image.Image]]], most: int = 4) -> Image.Image:
    """A clip's blocks below each other: `most` frames of each in a border of its maker's colour.

    Args:
        blocks: of each who made it, and its frames.
    """
    width, height = blocks[0][1][0].size
    scale = max(1, round(96 / height))
    width, height, border, label = width * scale, height * scale, 4, 18
    line = height + 2 * border + label
    sheet = Image.new("RGB", (most * width + 2 * border, line * len(blocks)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (maker, frames) in enumerate(blocks):
        top = number * line
        draw.text((border, top + 3), f"block {number}: {maker}", fill="black")
        corners = (0, top + label, sheet.width - 1, top + line - 1)
        draw.rectangle(corners, fill=COLOURS[maker])
        for n in range(most):
            frame = frames[round(n * (len(frames) - 1) / max(1, most - 1))]
            picture = frame.resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(picture, (border + n * width, top + label + border))
    return sheet
