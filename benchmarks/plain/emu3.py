"""Emu3, at any size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    Emu3ImageProcessor,
    Emu3Processor,
    GenerationConfig,
)

from mmspec.models.transformers.emu3 import Emu3ImageModel
from mmspec.pipelines.image.transformers_pipeline import TransformersImagePipeline

from .sizes import Published
from .subjects import PROMPT, Cache, DrawnSubject
from .words import ids_of, tokenizer

MARKS = {
    "image_token": "<image>",
    "boi_token": "<|image start|>",
    "eoi_token": "<|image end|>",
    "image_wrapper_token": "<|image token|>",
    "eof_token": "<|extra_201|>",
}
FACTOR = 8  # pixels to a code's side


def network(model: Published, layers: int, side: int) -> Emu3ForConditionalGeneration:
    """Emu3; its codes are the last words of its vocabulary."""
    words, count = tokenizer(**MARKS), model.sizes["vocab_size"]
    codes = {f"<|visual token {n:06d}|>": count - model.codes + n for n in range(model.codes)}
    marks = {"<|extra_200|>": len(words), "<image>": words.convert_tokens_to_ids("<image>")}
    made = Emu3ForConditionalGeneration(
        Emu3Config(
            text_config={"num_hidden_layers": layers, **model.sizes, **ids_of(words)},
            vq_config={
                "codebook_size": model.codes,
                "base_channels": 32,
                "channel_multiplier": [1] * 4,
                "num_res_blocks": 1,
                "attn_resolutions": [],
                "hidden_size": 32,
            },
            vocabulary_map=codes | marks,
            tie_word_embeddings=False,
        )
    )
    made.generation_config = GenerationConfig(**ids_of(words))
    return made.eval()


def subject(network: Any, side: int) -> Emu3Subject:
    """The pipeline, for `side` by `side` codes."""
    processor = Emu3Processor(Emu3ImageProcessor(), tokenizer(**MARKS), "{{ messages }}")
    pixels = side * FACTOR
    pipe = TransformersImagePipeline(network, processor)
    return Emu3Subject(pipe, height=pixels, width=pixels)


class Emu3Subject(DrawnSubject):
    """Emu3; transformers reads its guidance in a call of its own for every token.

    Its `generate` is called as its documentation has it, with a function that says which tokens may
    come next.
    """

    def theirs(self, rows: int, cache: Cache) -> Tensor:
        model: Any = self.pipe.image_model(self.network)
        grid = model.grid(self.size["height"], self.size["width"])
        said, other = (model.condition([text] * rows, None, False, grid) for text in (PROMPT, ""))
        before, words = said[0].shape[1], model.words
        visual = self.network.vocabulary_mapping.image_tokens
        forced = grid.forced.tolist()

        def allowed(row: int, ids: Tensor) -> list[int]:
            token = forced[len(ids) - before]
            return visual if token < 0 else [words[token]]

        out = self.network.generate(
            input_ids=said[0],
            attention_mask=said[1].long(),
            guidance_scale=Emu3ImageModel.guidance_scale,
            negative_prompt_ids=other[0],
            negative_prompt_attention_mask=other[1].long(),
            prefix_allowed_tokens_fn=allowed,
            top_k=Emu3ImageModel.top_k,
            max_new_tokens=grid.length,
            cache_implementation=cache,
            **self.drawing,
        )[:, before:]
        first = min(visual)
        return torch.stack([row[row >= first] for row in out]) - first
