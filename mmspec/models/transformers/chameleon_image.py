"""Anole and Lumina-mGPT as image models: Chameleon's words in front, its VQ decoder behind.

Anole (Chern et al. 2024, arXiv 2407.06135; `text2image.py` and `chameleon/inference/chameleon.py`
in the authors' repository): 32×32 codes behind the begin-of-image token. Lumina-mGPT (Liu et al.
2024, arXiv 2408.02657, section 3.1; `inference_solver.py` and `data/item_processor.py` there): the
picture's height and width as two tokens behind it, an end-of-line token behind every row of codes,
an end-of-image token behind the last.
"""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ...errors import InputError
from ..image_model import VqImageModel
from ..placement import Placement
from ..token_grid import TokenGrid, check_multiples, fixed_grid
from .causal import CausalDecoder
from .chameleon import LUMINA, ChameleonForImageGeneration

BEGIN, END_OF_TURN = "<s>", "<reserved08706>"
BEGIN_IMAGE, END_IMAGE = "<racm3:break>", "<eoss>"
END_OF_LINE = "<reserved08799>"
SIZES = 8800  # <reserved08800 + n> is a side of n patches
PATCH = 2  # codes


class ChameleonImageModel(VqImageModel):
    """Anole or Lumina-mGPT, see `VqImageModel`; the condition is token ids.

    The unconditional rows hold what the prompted ones do from the begin-of-image token on; Anole's
    have the begin-of-sequence token in front of it. Anole's authors draw with temperature 0.7 and
    top-p 0.9. Lumina-mGPT chooses the size tokens itself, out of the size that its prompt asks for;
    here they are given.

    Args:
        model: its `config.image_layout` says which of the two it is.
        processor: the tokenizer.
    """

    component_classes: ClassVar = {
        "model": "mmspec.models.transformers.chameleon:ChameleonForImageGeneration",
        # as tokenizer.json has it: Llama's class, which the published files name, is another's
        "processor": "transformers:PreTrainedTokenizerFast",
    }

    def __init__(self, model: ChameleonForImageGeneration, processor: Any) -> None:
        super().__init__(model, processor)
        self.lumina = model.config.image_layout == LUMINA
        self.guidance_scale, self.top_k = (4.0, 2000) if self.lumina else (3.0, 0)
        self.ids = self._ids()  # the model's own id of each of ours
        self.vocab_size, side = len(self.ids), model.config.vq_config.resolution
        self.default_size = side, side
        # pixels of a code's side
        self.factor = 2 ** (len(model.config.vq_config.channel_multiplier) - 1)

    def grid(self, height: int, width: int) -> TokenGrid:
        config, factor = self.network.config.vq_config, self.factor
        if self.lumina:
            patch, codes = PATCH * factor, config.num_embeddings
            check_multiples(height, width, patch)
            return TokenGrid(height // factor, width // factor, codes, (codes + 1,))
        return fixed_grid((height, width), self.default_size, height // factor)

    def condition(
        self, prompts: list[str], negative: list[str] | None, guided: bool, grid: TokenGrid
    ) -> tuple[Tensor, Tensor]:
        picture = [self._id(BEGIN_IMAGE)]
        if self.lumina:
            picture += [
                self._id(f"<reserved{SIZES + side // PATCH:05d}>")
                for side in (grid.rows, grid.columns)
            ]
        rows = [self._words(prompt, grid) + picture for prompt in prompts]
        if guided and negative is not None:
            rows += [self._words(prompt, grid) + picture for prompt in negative]
        elif guided:
            start = [] if self.lumina else [self._id(BEGIN)]
            rows += [start + picture] * len(prompts)
        lines = [torch.tensor(row, device=self.network.device) for row in rows]
        ids = pad_sequence(lines, True, padding_value=-1, padding_side="left")
        return ids.clamp_min(0), ids >= 0

    def decoder(
        self, placement: Placement | None = None, weights: str | None = None
    ) -> CausalDecoder:
        words = self.network.model.embed_tokens.weight
        codes = self.ids[: self.network.config.vq_config.num_embeddings]
        head = partial(F.linear, weight=self.network.lm_head.weight[codes])
        return CausalDecoder(self.network.model, words[self.ids], head, weights)

    def pixels(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        tokenizer = self.network.model.vqmodel
        latents = grid.latents(codes, self.codebook()).contiguous()
        decoded = tokenizer.decoder(tokenizer.post_quant_conv(latents))
        return decoded.float().clamp(-1, 1) / 2 + 0.5

    def _ids(self) -> Tensor:
        """Codes `[V]` as words of the model, then end of line and end of image where needed."""
        mapping = self.network.model.vocabulary_mapping.img2bpe
        codes = range(self.network.config.vq_config.num_embeddings)
        missing = [code for code in codes if code not in mapping]
        if missing:
            raise InputError(f"the model's vocabulary_map has no token for code {missing[0]}")
        forced = (END_OF_LINE, END_IMAGE) if self.lumina else ()
        ids = [mapping[code] for code in codes] + [self._id(name) for name in forced]
        return torch.tensor(ids, device=self.network.device)

    def _words(self, prompt: str, grid: TokenGrid) -> list[int]:
        """A prompt as its authors' scripts put it, up to the begin-of-image token."""
        if self.lumina:
            size = f"{grid.columns * self.factor}x{grid.rows * self.factor}"
            prompt = f"Generate an image of {size} according to the following prompt:\n{prompt}"
        words: list[int] = self.processor(prompt, add_special_tokens=False)["input_ids"]
        return [self._id(BEGIN), *words, self._id(END_OF_TURN)]

    def _id(self, name: str) -> int:
        found = self.network.config.vocabulary_map.get(name)
        if found is None:
            raise InputError(f"the model's vocabulary_map has no {name}")
        return int(found)
