"""Live views of every modality's runs: pictures, answers and clips, as they are made."""

from __future__ import annotations

import math
from itertools import groupby
from typing import Any, ClassVar

import torch
from PIL import Image

from ..engine.stats import SpecStats
from ..eval.contact_sheet import COLOURS
from ..eval.frame_times import frame_times
from ..methods.parts.blocks import BlockVideoOptions
from ..models.mar.autoencoder import decode_tokens
from ..pipelines.output import VideoBlock
from ..pipelines.video.components import VideoSizes
from . import markup
from .generation_view import GenerationRequest, GenerationView

SHOWN = 3  # frames of a block of video in the strip
HIGH = 80  # pixels of theirs, twice what the page shows: for sharp screens
FPS = 16


class PictureView(GenerationView):
    """A picture, and beside it a cell for every token in the colours of who made it."""

    def figure(self, pixels: torch.Tensor, colours: list[str], columns: int, alt: str) -> str:
        """Pixels `[1, 3, H, W]` in [0, 1], blank where a token is not there yet."""
        (image,) = self.pipe.pictures(pixels, "pil")
        mask = Image.new("L", (columns, len(colours) // columns))
        mask.putdata([255 * (colour != markup.OPEN) for colour in colours])
        blank = Image.new("RGB", image.size, markup.OPEN)
        mask = mask.resize(image.size, Image.Resampling.NEAREST)
        prompt = self.request.prompt
        return markup.figure(
            markup.picture(Image.composite(image, blank, mask), prompt, "mm-picture"),
            markup.mosaic(colours, columns, alt),
            caption=prompt,
        )


class ImageView(PictureView):
    """A picture of token ids, and who made which."""

    def __init__(self, pipe: Any, request: GenerationRequest) -> None:
        super().__init__(pipe, request)
        self.network, self.grid = pipe.network(None, None)
        self.total = self.grid.length
        self.tokens = torch.zeros(1, self.total, dtype=torch.long)

    def generate(self, **call: Any) -> Any:
        if call.get("top_k") == -1:
            call["top_k"] = None
        return self.pipe(self.request.prompt, output_type="tokens", **call)

    def observe(self, state: dict[str, Any]) -> None:
        self.made += self.drafted(state)
        self.tokens = state["context"].tokens[:, : self.total]

    @torch.inference_mode()
    def html(self) -> str:
        done, grid = len(self.made), self.grid
        made = torch.full((1, self.total), -1.0)
        made[0, :done] = torch.tensor(self.made)
        there = torch.arange(self.total, device=self.tokens.device) < done
        codes = grid.codes(self.tokens * there)
        pixels = self.pipe.image_model(self.network).pixels(codes, grid)
        colours = [
            markup.OPEN if cell < 0 else COLOURS["drafter" if cell else "target"]
            for cell in grid.codes(made)[0].tolist()
        ]
        return self.figure(pixels, colours, grid.columns, "who made which token")


class ContinuousView(PictureView):
    """A picture of continuous tokens, drawn in any order, and how much of each was drafted."""

    each: ClassVar[str] = "steps per call of the head"

    def __init__(self, pipe: Any, request: GenerationRequest) -> None:
        super().__init__(pipe, request)
        self.columns = int(pipe.transformer.config.grid)
        self.total = self.columns**2
        self.tokens: torch.Tensor | None = None
        self.positions: list[int] = []

    def generate(self, **call: Any) -> Any:
        call |= {name: call[name] or None for name in ("temperature", "guidance_scale")}
        return self.pipe(self.request.prompt, output_type="latent", **call)

    def observe(self, state: dict[str, Any]) -> None:
        self.tokens = state["latents"]
        self.positions += state["positions"][0].tolist()
        self.made += state["drafted"][0].tolist()

    @torch.inference_mode()
    def html(self) -> str:
        if self.tokens is None:
            return ""
        pixels = decode_tokens(self.pipe.vae, self.tokens.to(self.pipe.vae.dtype)).float()
        colours = [markup.OPEN] * self.total
        for place, share in zip(self.positions, self.made, strict=True):
            colours[place] = markup.blend(share)
        told = "how much of every token was drafted"
        return self.figure(pixels.clamp(-1, 1) / 2 + 0.5, colours, self.columns, told)


class VlmView(GenerationView):
    """An answer whose drafted words are marked."""

    def __init__(self, pipe: Any, request: GenerationRequest) -> None:
        super().__init__(pipe, request)
        self.tokens: list[int] = []

    @property
    def tokenizer(self) -> Any:
        return self.pipe.processor.tokenizer

    def generate(self, **call: Any) -> Any:
        return self.pipe(self.request.prompt, self.request.picture, **call)

    def observe(self, state: dict[str, Any]) -> None:
        self.made += self.drafted(state)
        self.tokens = state["context"].tokens[0, : len(self.made)].tolist()

    def html(self) -> str:
        return markup.spans(self.pieces())

    def pieces(self) -> list[tuple[str, bool]]:
        """The text so far, cut where its maker changes.

        A piece is what its tokens add to the text before them: a character may take several.
        """
        found, told, at = [], "", 0
        for maker, group in groupby(self.made):
            at += len(list(group))
            text = self._text(self.tokens[:at])
            whole = text.rstrip("\N{REPLACEMENT CHARACTER}")  # the rest of it comes with the next
            found.append((whole[len(told) :], bool(maker)))
            told = whole
        return [piece for piece in found if piece[0]]

    def _text(self, tokens: list[int]) -> str:
        return self.tokenizer.decode(
            tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )


class VideoView(GenerationView):
    """A clip, and under it its blocks in borders of their makers' colours.

    As long as there is more to come the clip is its newest block.
    """

    unit: ClassVar[str] = "blocks"

    def __init__(self, pipe: Any, request: GenerationRequest) -> None:
        super().__init__(pipe, request)
        sizes = VideoSizes(pipe.transformer, pipe.vae)
        self.total = request.call["blocks"]
        self.frames_in_all = sizes.frames(self.total)
        self.frames: list[Image.Image] = []
        self.newest = 0  # frames of the last block
        self.blocks: list[str] = []

    @property
    def first_rounds(self) -> int:
        """Rounds up to the first draft, which the first blocks have not."""
        config = self.pipe.speculation.resolve("video")
        return config.of(BlockVideoOptions).forced_blocks + 1 if config.drafts else 1

    def generate(self, **call: Any) -> Any:
        del call["blocks"]
        call["num_inference_steps"] = call["num_inference_steps"] or None
        return self.pipe(
            self.request.prompt,
            num_frames=self.frames_in_all,
            output_type="none",
            callback_on_block=self.add,
            **call,
        )

    def add(self, pipe: Any, block: VideoBlock) -> None:
        """Add a finished block."""
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
        told = _block_caption(block)
        image = markup.picture(strip, told)
        self.blocks.append(
            f'<div class="mm-block mm-by-{block.made_by}">{image}'
            f"<span>{markup.escape(told)}</span></div>"
        )

    def calls(self, stats: SpecStats) -> tuple[str, str]:
        """Count steps: a block takes the target several."""
        return "steps that the target took", str(sum(stats.calls))

    def observe(self, state: dict[str, Any]) -> None:
        """Do nothing: blocks come by a callback of their own."""

    def html(self) -> str:
        if not self.frames:
            return ""
        first, *others = frames = self.frames if self.over else self.frames[-self.newest :]
        frame_time = frame_times(len(frames), FPS, 1000)
        film = markup.data_uri(
            first, "webp", save_all=True, append_images=others, duration=frame_time, loop=0
        )
        alt = markup.escape(self.request.prompt)
        clip = f'<img class="mm-picture" src="{film}" alt="{alt}">'
        strips = f'<div class="mm-blocks">{"".join(self.blocks)}</div>'
        return markup.figure(clip, strips, caption=self.request.prompt)


def _block_caption(block: VideoBlock) -> str:
    small = block.made_by == "drafter"
    told = f"block {block.number + 1}, {'drafted' if small else 'by the target'}"
    if not block.rewards:
        return told
    if any(math.isnan(reward) for reward in block.rewards):
        return f"{told}: the draft could not be judged"
    score = f"scored {min(block.rewards):.3g}"  # its worst frame's
    return f"{told}: {score}" if small else f"{told}: the draft {score}"
