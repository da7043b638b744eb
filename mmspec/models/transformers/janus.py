"""Janus and Janus-Pro as image models (Wu et al. 2024, Chen et al. 2025), on transformers' classes.

A language model whose image tokens have embeddings and a head of their own.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from ..image_model import VqImageModel, to_unit_range, tokenize
from ..placement import Placement
from ..token_grid import TokenGrid, fixed_grid
from .causal import CausalDecoder


class JanusImageModel(VqImageModel):
    """Janus or Janus-Pro, see `VqImageModel`; the condition is token ids.

    Unconditional rows are the conditional ones with the pad token in place of every word, the first
    and the last token left: as the models were trained, and as transformers' `generate` has it.

    Raises:
        InputError: the processor has no chat template to put prompts in.
    """

    guidance_scale, top_k = 5.0, 0
    component_classes: ClassVar = VqImageModel.classes_of("Janus")

    def __init__(self, network: Any, processor: Any) -> None:
        super().__init__(network, processor)
        if not self.processor.chat_template:
            raise InputError("this Janus processor has no chat template; its folder lacks a file")
        config = network.config.vq_config
        self.vocab_size, self.side = config.num_embeddings, config.num_patches
        pixels = self.side * 2 ** (len(config.channel_multiplier) - 1)
        self.default_size = pixels, pixels

    def grid(self, height: int, width: int) -> TokenGrid:
        return fixed_grid((height, width), self.default_size, self.side)

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        texts = [*prompts, *(negative or [])] if guided else prompts
        ids, mask = tokenize(self.processor, texts, self._turn, generation_mode="image")
        if guided and negative is None:
            tokens = self.processor.tokenizer
            stays = (ids == tokens.bos_token_id) | (ids == tokens.boi_token_id)
            ids = torch.cat([ids, ids.where(stays, tokens.pad_token_id)])
            mask = torch.cat([mask, mask])
        return ids.to(self.network.device), mask.to(self.network.device)

    def _turn(self, prompt: str) -> str:
        """Put a user's prompt into a conversation that is the model's to answer."""
        said = [{"role": "user", "content": [{"type": "text", "text": prompt}]}]
        return self.processor.apply_chat_template(said, add_generation_prompt=True)

    def decoder(
        self, placement: Placement | None = None, weights: str | None = None
    ) -> CausalDecoder:
        parts = self.network.model
        with torch.no_grad():
            codes = torch.arange(self.vocab_size, device=self.network.device)
            table = self.network.prepare_embeddings_for_image_generation(codes)
        return CausalDecoder(parts.language_model, table, parts.generation_head, weights)

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        decoded = self.network.decode_image_tokens(codes).permute(0, 3, 1, 2)
        return to_unit_range(decoded, self.processor.image_processor)

    def codebook(self) -> Tensor:
        return F.normalize(super().codebook(), dim=-1)
