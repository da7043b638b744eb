"""Pictures of continuous tokens, as they are drawn, in whatever order."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ..models.mar.autoencoder import decode_tokens
from . import markup
from .generation_view import GenerationView, Wish, covered


class ContinuousView(GenerationView):
    """A picture; beside it how much of every token was drafted."""

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
        (image,) = self.pipe.pictures(pixels.clamp(-1, 1) / 2 + 0.5, "pil")
        colours = [markup.OPEN] * self.total
        for place, share in zip(self.positions, self.made, strict=True):
            colours[place] = markup.blend(share)
        known = [colour != markup.OPEN for colour in colours]
        return markup.figure(
            markup.picture(covered(image, known, self.columns), self.wish.prompt, "mm-picture"),
            markup.mosaic(colours, self.columns, "how much of every token was drafted"),
            caption=self.wish.prompt,
        )
