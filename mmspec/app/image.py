"""Pictures of token ids, as they are drawn."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..eval.contact_sheet import COLOURS
from . import markup
from .generation_view import GenerationView, Wish, covered, drafted


class ImageView(GenerationView):
    """A picture; beside it who made which token."""

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
        codes = self._codes(self.tokens, done)
        pixels = self.pipe.image_model(self.network).pixels(codes, grid)
        (image,) = self.pipe.pictures(pixels, "pil")
        cells = grid.codes(made)[0].tolist()
        known = [cell >= 0 for cell in cells]
        colours = [
            markup.OPEN if cell < 0 else COLOURS["drafter" if cell else "target"] for cell in cells
        ]
        return markup.figure(
            markup.picture(covered(image, known, grid.columns), self.wish.prompt, "mm-picture"),
            markup.mosaic(colours, grid.columns, "who made which token"),
            caption=self.wish.prompt,
        )

    def _codes(self, tokens: Tensor, done: int) -> Tensor:
        """The codes of a picture of which `done` tokens are there; 0 elsewhere."""
        there = torch.arange(self.total, device=tokens.device) < done
        codes: Tensor = self.grid.codes(tokens * there)
        return codes
