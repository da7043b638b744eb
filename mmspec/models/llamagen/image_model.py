"""LlamaGen as an image model: captions or classes in front, a VQ decoder behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ..distinct import distinct
from ..placement import Placement
from ..text_encoder import encode_captions
from ..token_grid import TokenGrid, fixed_grid
from .decoder import LlamaGenDecoder
from .transformer import LlamaGenTransformer
from .vq import VQModel


class LlamaGenImageModel:
    """LlamaGen for captions, see `ImageModel`; the condition is their T5 features."""

    def __init__(
        self, network: LlamaGenTransformer, vq_model: VQModel, text_encoder: Any, tokenizer: Any
    ) -> None:
        self.network, self.vq_model = network, vq_model
        self.text_encoder, self.tokenizer = text_encoder, tokenizer
        config, side = network.config, int(network.grid * vq_model.downsample_factor)
        self.guidance_scale, self.top_k = config.sample_guidance, config.sample_top_k
        self.vocab_size, self.default_size = config.vocab_size, (side, side)

    def grid(self, height: int, width: int) -> TokenGrid:
        return fixed_grid((height, width), self.default_size, self.network.grid)

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        features, mask = self._encoded(prompts)
        if not guided:
            return features, mask
        if negative is None:
            return self.uncaptioned(features.repeat(2, 1, 1)), mask.repeat(2, 1)
        without, without_mask = self._encoded(negative)
        return torch.cat([features, without]), torch.cat([mask, without_mask])

    def _encoded(self, captions: list[str]) -> tuple[Tensor, Tensor]:
        clean = bool(self.network.config.clean_captions)
        length, (told, rows) = self.network.prefix_length, distinct(captions)
        features, mask = encode_captions(self.tokenizer, self.text_encoder, told, length, clean)
        return features[rows], mask[rows]

    def uncaptioned(self, condition: Tensor) -> Tensor:
        told = condition.chunk(2)[0]
        nothing = self.network.cls_embedding.get_buffer("uncond_embedding")
        return torch.cat([told, nothing.to(told).expand_as(told)])

    def embed(self, condition: Tensor) -> Tensor:
        # an encoder, or the target of a drafter, may be of another precision
        return self.network.cls_embedding(condition.to(self.network.output.weight.dtype))

    def decoder(
        self, placement: Placement | None = None, weights: str | None = None
    ) -> LlamaGenDecoder:
        return LlamaGenDecoder(self.network, placement, weights)

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        decoded = self.vq_model.decode(codes, grid.rows, grid.columns)
        return decoded.float().clamp(-1, 1) / 2 + 0.5

    def codebook(self) -> Tensor:
        return self.vq_model.quantize.codebook()


class LlamaGenClassModel(LlamaGenImageModel):
    """LlamaGen for classes: prompts are their numbers, and the condition is `[R, 1]` of them."""

    @property
    def nothing(self) -> int:
        """The class that stands for none."""
        return int(self.network.config.num_classes)

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        if negative is not None:
            raise InputError("this model is told classes: it has no negative_prompt")
        device = next(self.network.cls_embedding.parameters()).device  # others may be elsewhere
        labels = torch.tensor([[int(prompt)] for prompt in prompts], device=device)
        if guided:
            labels = self.uncaptioned(labels.repeat(2, 1))
        return labels, torch.ones_like(labels, dtype=torch.bool)

    def uncaptioned(self, condition: Tensor) -> Tensor:
        told = condition.chunk(2)[0]
        return torch.cat([told, torch.full_like(told, self.nothing)])

    def embed(self, condition: Tensor) -> Tensor:
        return self.network.cls_embedding(condition[:, 0])
