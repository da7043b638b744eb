"""LlamaGen as an image model: T5 features in front, a VQ decoder behind (Sun et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..errors import InputError
from .decoder import Decoder
from .llamagen import LlamaGenTransformer
from .placement import Placement
from .text import encode_captions
from .token_grid import TokenGrid
from .vq import VQModel


@dataclass
class LlamaGenImageModel:
    """See `ImageModel`; the condition is the T5 features of the captions.

    Args:
        network: the transformer.
        vq_model: image tokenizer.
        text_encoder, tokenizer: T5 encoder and its tokenizer.
    """

    network: LlamaGenTransformer
    vq_model: VQModel
    text_encoder: nn.Module
    tokenizer: Any
    guidance_scale: ClassVar[float] = 2.0
    top_k: ClassVar[int] = 100

    @property
    def vocab_size(self) -> int:
        return int(self.network.config.vocab_size)

    @property
    def default_size(self) -> tuple[int, int]:
        side = int(self.network.grid * self.vq_model.downsample_factor)
        return side, side

    def grid(self, height: int, width: int) -> TokenGrid:
        side = self.network.grid
        if (height, width) != self.default_size:
            size = "×".join(str(n) for n in self.default_size)
            raise InputError(f"this model draws {size} px, not {height}×{width}")
        return TokenGrid(side, side)

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        length = self.network.prefix_length
        features, mask = encode_captions(self.tokenizer, self.text_encoder, prompts, length)
        if not guided:
            return features, mask
        if negative is None:  # the learned "no caption"
            nothing = self.network.cls_embedding.get_buffer("uncond_embedding")
            without, without_mask = nothing.to(features).expand_as(features), mask
        else:
            without, without_mask = encode_captions(
                self.tokenizer, self.text_encoder, negative, length
            )
        return torch.cat([features, without]), torch.cat([mask, without_mask])

    def uncaptioned(self, condition: Tensor) -> Tensor:
        """A guided condition of another network, with this one's learned "no caption" in it."""
        told = condition.chunk(2)[0]
        nothing = self.network.cls_embedding.get_buffer("uncond_embedding")
        return torch.cat([told, nothing.to(told).expand_as(told)])

    def embed(self, condition: Tensor) -> Tensor:
        prefix: Tensor = self.network.cls_embedding(condition)
        return prefix

    def decoder(self, placement: Placement | None = None) -> Decoder:
        return Decoder(self.network, placement)

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        decoded: Tensor = self.vq_model.decode(codes, grid.rows, grid.columns)
        return decoded.float().clamp(-1, 1) / 2 + 0.5

    def codebook(self) -> Tensor:
        """As distances are measured between its vectors."""
        return self.vq_model.quantize.codebook()
