"""`mmspec video`: the same clip by several methods, as files that show who made what."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from ..files import locked, write_atomic, write_json
from ..pipelines.video.components import VideoSizes
from ..progress import say
from .contact_sheet import COLOURS
from .data.videos import Encoder, write_video
from .files import png_bytes
from .frame_times import gif_times
from .measure.timing import Sample, paired_runs
from .showcase import Showcase

HEIGHT = 96  # pixels of a frame in a strip


def film(show: Showcase, out: Path, fps: int, encode: Encoder | None = None) -> dict[str, Any]:
    """Make clips by every method, in turn; returns what `stats.json` holds.

    Writes `<method>-<seed>.gif`, with an encoder `.mp4` too, `<method>-<seed>.png`, a strip that
    shows who made which block, and `stats.json`. Files' names have no brackets: `sdvg[tau=20]` is
    `sdvg-tau=20`.

    Raises:
        InputError: another run writes to `out`, or it can't be written.
    """
    sizes = VideoSizes(show.pipe.transformer, show.pipe.vae)
    with locked(out):
        if len(show.methods) > 1:  # the first calls of a process are slow, two blocks are enough
            warm = {**show.call, "num_frames": sizes.frames(2)}
            say("warming up")
            paired_runs(show.pipe, show.methods, [show.prompt], show.seed, warm, warmup=0)
        samples = show.run("clip", warmup=0)
        files = []
        for name, rows in samples.items():
            plain = re.sub(r"[^\w.=-]+", "-", name).strip("-")
            for sample in rows:
                files += _write(sample, sizes, out, f"{plain}-{sample.seed}", fps, encode)
        record = {**show.record(samples), "fps": fps, "files": files}
        write_json(out / "stats.json", record)
    return record


def _write(
    sample: Sample, sizes: VideoSizes, out: Path, name: str, fps: int, encode: Encoder | None
) -> list[str]:
    """Files of one clip; returns their names."""
    output = sample.output
    (frames,), (made_by,), (rewards,) = output.frames, output.made_by, output.rewards
    blocks = sizes.split(frames, made_by)
    write_atomic(out / f"{name}.gif", gif_bytes(frames, fps))
    write_atomic(out / f"{name}.png", png_bytes(strip(blocks, rewards)))
    names = [f"{name}.gif", f"{name}.png"]
    if encode is not None:
        write_video(frames, out / f"{name}.mp4", fps, encode)
        names.append(f"{name}.mp4")
    return names


def gif_bytes(frames: list[Image.Image], fps: int) -> bytes:
    """An animation that is played at the clip's own pace, again and again."""
    times, file = gif_times(len(frames), fps), io.BytesIO()
    first, *others = (frames[n] for n in times)
    shown = list(times.values())
    if others:
        first.save(file, "gif", save_all=True, append_images=others, duration=shown, loop=0)
    else:
        first.save(file, "gif", duration=shown[0])
    return file.getvalue()


def strip(
    blocks: list[tuple[str, list[Image.Image]]], rewards: list[list[float]], most: int = 4
) -> Image.Image:
    """A clip's blocks below each other: `most` frames of each in a border of its maker's colour.

    Frames are about 96 pixels high, and small ones are scaled up by a whole number.

    Args:
        blocks: of each who made it, and its frames.
        rewards: of the frames that the drafter proposed for each; empty where nobody judged.
    """
    width, height = blocks[0][1][0].size
    scale = max(1, round(HEIGHT / height)) if height <= HEIGHT else HEIGHT / height
    how = Image.Resampling.NEAREST if scale >= 1 else Image.Resampling.LANCZOS
    width, height, border, label = round(width * scale), round(height * scale), 4, 18
    line = height + 2 * border + label
    sheet = Image.new("RGB", (most * width + 2 * border, line * len(blocks)), "white")
    draw = ImageDraw.Draw(sheet)
    for number, (maker, frames) in enumerate(blocks):
        top = number * line
        draw.text((border, top + 3), _told(number, maker, rewards[number]), fill="black")
        corners = (0, top + label, sheet.width - 1, top + line - 1)
        draw.rectangle(corners, fill=COLOURS[maker])
        for n in range(most):
            frame = frames[round(n * (len(frames) - 1) / max(1, most - 1))]
            picture = frame.resize((width, height), how)
            sheet.paste(picture, (border + n * width, top + label + border))
    return sheet


def _told(number: int, maker: str, rewards: list[float]) -> str:
    """Maker of a block, and the reward of the drafter's proposal for it."""
    told = f"block {number}: {maker}"
    if not rewards:
        return told
    worst = "none" if any(map(math.isnan, rewards)) else f"{min(rewards):.3g}"
    return f"{told}, reward {worst}" if maker == "drafter" else f"{told}, draft's reward {worst}"
