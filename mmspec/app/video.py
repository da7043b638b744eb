"""Clips, block by block."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from PIL import Image

from ..engine.stats import SpecStats
from ..eval.frame_times import frame_times
from ..methods.parts.blocks import BlockVideoOptions
from ..pipelines.output import VideoBlock
from ..pipelines.video.sizes import VideoSizes
from . import markup
from .generation_view import GenerationView, Wish

SHOWN = 3  # frames of a block in the strip
HIGH = 88  # pixels of theirs, twice what the page shows: for sharp screens
FPS = 16


class VideoView(GenerationView):
    """A clip, and under it its blocks in borders of their makers' colours.

    As long as there is more to come the clip is its newest block.
    """

    unit: ClassVar[str] = "blocks"

    def __init__(self, pipe: Any, wish: Wish) -> None:
        super().__init__(pipe, wish)
        sizes = VideoSizes(pipe.transformer, pipe.vae)
        self.total = wish.call["blocks"]
        self.frames_in_all = sizes.frames(self.total)
        self.frames: list[Image.Image] = []
        self.newest = 0  # frames of the last block
        self.blocks: list[str] = []

    @property
    def first_rounds(self) -> int:
        """The first blocks have no draft."""
        config = self.pipe.speculation.resolve("video")
        return config.of(BlockVideoOptions).forced_blocks + 1 if config.drafts else 1

    def generate(self, **call: Any) -> Any:
        del call["blocks"]
        call["num_inference_steps"] = call["num_inference_steps"] or None
        return self.pipe(
            self.wish.prompt,
            num_frames=self.frames_in_all,
            output_type="none",
            callback_on_block=self.add,
            **call,
        )

    def add(self, pipe: Any, block: VideoBlock) -> None:
        """A block, as soon as it stands."""
        frames = [Image.fromarray(frame) for frame in block.pictures.movedim(1, -1).numpy()]
        self.frames += frames
        self.newest = len(frames)
        self.made.append(float(block.made_by == "drafter"))
        shown = [frames[round(n * (len(frames) - 1) / (SHOWN - 1))] for n in range(SHOWN)]
        scale = min(1, HIGH / shown[0].height)
        width, height = (round(scale * side) for side in shown[0].size)
        strip = Image.new("RGB", (SHOWN * width, height))
        for n, frame in enumerate(shown):
            strip.paste(frame.resize((width, height)), (n * width, 0))
        told = _told(block)
        image = markup.picture(strip, told)
        self.blocks.append(
            f'<div class="mm-block mm-by-{block.made_by}">{image}'
            f"<span>{markup.escape(told)}</span></div>"
        )

    def calls(self, stats: SpecStats) -> tuple[str, str]:
        """A block takes the target several."""
        return "steps that the target took", str(sum(stats.calls))

    def observe(self, state: dict[str, Any]) -> None:
        """Blocks come by a callback of their own."""

    def html(self) -> str:
        if not self.frames:
            return ""
        first, *others = frames = self.frames if self.over else self.frames[-self.newest :]
        frame_time = frame_times(len(frames), FPS, 1000)
        film = markup.data_uri(
            first, "webp", save_all=True, append_images=others, duration=frame_time, loop=0
        )
        alt = markup.escape(self.wish.prompt)
        clip = f'<img class="mm-picture" src="{film}" alt="{alt}">'
        strips = f'<div class="mm-blocks">{"".join(self.blocks)}</div>'
        return markup.figure(clip, strips, caption=self.wish.prompt)


def _told(block: VideoBlock) -> str:
    small = block.made_by == "drafter"
    told = f"block {block.number + 1}, {'drafted' if small else 'by the target'}"
    if not block.rewards:
        return told
    if any(math.isnan(reward) for reward in block.rewards):
        return f"{told}: the draft could not be judged"
    worst = f"worst frame scored {min(block.rewards):.3g}"
    return f"{told}: its {worst}" if small else f"{told}: the draft's {worst}"
