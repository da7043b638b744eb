"""Emu3 as an image model (Wang et al. 2024), on transformers' classes.

Codes are words of the text vocabulary. Every row of them ends with a token of its own, the picture
with three more: end of frame, end of image, end of sequence.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from ..image_model import VqImageModel, to_unit_range, tokenize
from ..placement import Placement
from ..token_grid import TokenGrid, check_multiples
from .causal import CausalDecoder


class Emu3ImageModel(VqImageModel):
    """Emu3, see `VqImageModel`; the condition is token ids of the text vocabulary.

    A prompt ends with the size of the picture in tokens. Unconditional rows are told the negative
    prompt, or no word, and the same size.

    Raises:
        InputError: the vocabulary lacks the tokens of a picture.
    """

    guidance_scale, top_k = 3.0, 2048
    component_classes: ClassVar = VqImageModel.classes_of("Emu3")

    def __init__(self, network: Any, processor: Any) -> None:
        super().__init__(network, processor)
        words, self.codes = network.vocabulary_mapping, network.config.vq_config.codebook_size
        if sorted(words.img2bpe) != list(range(self.codes)) or words.eol_token_id is None:
            raise InputError(
                "this Emu3's vocabulary_map lacks visual tokens or the end-of-line token"
            )
        self.vocab_size = self.codes + 4
        self.factor = network.model.vqmodel.spatial_scale_factor  # pixels to a token's side
        side = round(processor.image_area**0.5 / self.factor) * self.factor
        self.default_size = side, side

    @property
    def words(self) -> list[int]:
        """The text vocabulary's ids of codes, and of the forced tokens behind them."""
        mapping, tokens = self.network.vocabulary_mapping, self.processor.tokenizer
        codes = [mapping.img2bpe[code] for code in range(len(mapping.img2bpe))]
        ends = [tokens.eof_token_id, tokens.eoi_token_id, tokens.eos_token_id]
        return [*codes, mapping.eol_token_id, *ends]

    def grid(self, height: int, width: int) -> TokenGrid:
        factor = self.factor
        check_multiples(height, width, factor)
        line, *tail = range(self.codes, self.vocab_size)
        return TokenGrid(height // factor, width // factor, line, tuple(tail))

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        texts = [*prompts, *(negative or [""] * len(prompts))] if guided else prompts
        ratio, side = f"{grid.columns}:{grid.rows}", self.processor.downsample_ratio
        size = {"ratio": ratio, "image_area": grid.columns * grid.rows * side**2}
        ids, mask = tokenize(self.processor, texts, return_for_image_generation=True, **size)
        return ids.to(self.network.device), mask.to(self.network.device)

    def decoder(
        self, placement: Placement | None = None, weights: str | None = None
    ) -> CausalDecoder:
        words = torch.tensor(self.words, device=self.network.device)
        table = self.network.get_input_embeddings().weight.detach()[words]
        head = partial(F.linear, weight=self.network.lm_head.weight.detach()[words[: self.codes]])
        return CausalDecoder(self.network.model.text_model, table, head, weights)

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        decoded = self.network.model.vqmodel.decode(codes.unflatten(1, (grid.rows, grid.columns)))
        return to_unit_range(decoded, self.processor.image_processor)
