"""Pictures of token ids and of continuous tokens, as they are drawn."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from PIL import Image

from ..eval.contact_sheet import COLOURS
from ..models.mar.autoencoder import decode_tokens
from . import markup
from .generation_view import GenerationView, Wish, drafted


class PictureView(GenerationView):
    """A picture, and beside it a cell for every token in the colours of who made it."""

    def figure(self, pixels: torch.Tensor, colours: list[str], columns: int, alt: str) -> str:
        """Pixels `[1, 3, H, W]` in [0, 1], blank where a token is not there yet."""
        (image,) = self.pipe.pictures(pixels, "pil")
        mask = Image.new("L", (columns, len(colours) // columns))
        mask.putdata([255 * (colour != markup.OPEN) for colour in colours])
        blank = Image.new("RGB", image.size, markup.OPEN)
        mask = mask.resize(image.size, Image.Resampling.NEAREST)
        prompt = self.wish.prompt
        return markup.figure(
            markup.picture(Image.composite(image, blank, mask), prompt, "mm-picture"),
            markup.mosaic(colours, columns, alt),
            caption=prompt,
        )


class ImageView(PictureView):
    """Beside the picture of token ids: who made which."""

    def __init__(self, pipe: Any, wish: Wish) -> None:
        super().__init__(pipe, wish)
        self.network, self.grid = pipe.network(None, None)
        self.total = self.grid.length
        self.tokens = torch.zeros(1, self.total, dtype=torch.long)

    def generate(self, **call: Any) -> Any:
        return self.pipe(self.wish.prompt, output_type="tokens", **call)

    def observe(self, state: dict[str, Any]) -> None:
        self.made += drafted(self, state)
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
    """Beside the picture of continuous tokens, drawn in any order: how much of each was drafted."""

    each: ClassVar[str] = "steps per call of the head"

    def __init__(self, pipe: Any, wish: Wish) -> None:
        super().__init__(pipe, wish)
        self.columns = int(pipe.transformer.config.grid)
        self.total = self.columns**2
        self.tokens: torch.Tensor | None = None
        self.positions: list[int] = []

    def generate(self, **call: Any) -> Any:
        return self.pipe(self.wish.prompt, output_type="latent", **call)

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
