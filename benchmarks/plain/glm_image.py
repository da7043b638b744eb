"""GLM-Image's autoregressive stage, at any size."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GenerationConfig, GlmImageConfig, GlmImageForConditionalGeneration

from .sizes import Published
from .subjects import GeneratingSubject

WORDS = 9  # of a prompt


def network(model: Published, layers: int, side: int) -> GlmImageForConditionalGeneration:
    """GLM-Image's autoregressive stage."""
    start, end, pad, source = range(model.codes, model.codes + 4)
    made = GlmImageForConditionalGeneration(
        GlmImageConfig(
            text_config={
                "num_hidden_layers": layers,
                "pad_token_id": pad,
                "eos_token_id": end,
                **model.sizes,
            },
            vision_config={
                "depth": 1,
                "hidden_size": 32,
                "num_heads": 2,
                "image_size": 32,
                "patch_size": 8,
                "intermediate_size": 32,
            },
            vq_config={"embed_dim": 32, "num_embeddings": model.codes, "latent_channels": 32},
            image_token_id=source,
            image_start_token_id=start,
            image_end_token_id=end,
        )
    )
    made.generation_config = GenerationConfig(pad_token_id=pad)
    return made.eval()


def subject(network: Any, side: int) -> GeneratingSubject:
    """A small picture of half the side first, then the large one, and an end."""
    grids = [[1, side, side], [1, max(1, side // 2), max(1, side // 2)]]
    config = network.config
    words = config.text_config.vocab_size - 1 - torch.arange(WORDS)
    ids = torch.cat([words, torch.tensor([config.image_start_token_id])])[None]

    def inputs(rows: int) -> dict[str, Any]:
        return {
            "input_ids": ids.expand(rows, -1).contiguous(),
            "attention_mask": torch.ones(rows, ids.shape[1], dtype=torch.long),
            "image_grid_thw": torch.tensor(grids * rows),
            "images_per_sample": torch.tensor([2] * rows),
        }

    tokens = sum(height * width for _, height, width in grids) + 1
    return GeneratingSubject(network, inputs, tokens)
