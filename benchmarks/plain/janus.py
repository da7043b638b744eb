"""Janus and Janus-Pro, at any size."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    JanusConfig,
    JanusForConditionalGeneration,
    JanusImageProcessor,
    JanusProcessor,
)

from mmspec.models.transformers.janus import JanusImageModel
from mmspec.pipelines.image.transformers_pipeline import TransformersImagePipeline

from .sizes import Published
from .subjects import PROMPT, Cache, DrawnSubject, own_cache
from .words import ids_of, tokenizer

MARKS = {"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"}
FACTOR = 16  # pixels to a code's side
TURN = (
    "{% for message in messages %}{{ 'User: ' + message['content'][0]['text'] + ' ' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"
)


def network(model: Published, layers: int, side: int) -> JanusForConditionalGeneration:
    """Janus, for `side` by `side` codes."""
    width, words = model.sizes["hidden_size"], tokenizer(**MARKS)
    text = {"model_type": "llama", "num_hidden_layers": layers, **model.sizes, **ids_of(words)}
    made = JanusForConditionalGeneration(
        JanusConfig(
            text_config=text,
            vision_config={
                "hidden_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": FACTOR * side,
                "projection_dim": width,
                "num_image_tokens": side * side,
            },
            vq_config={
                "embed_dim": 8,
                "num_embeddings": model.codes,
                "num_patches": side,
                "latent_channels": 32,
                "base_channels": 32,
                "channel_multiplier": [1] * 5,
                "num_res_blocks": 1,
                "projection_dim": width,
                "image_token_embed_dim": width,
            },
            image_token_id=words.convert_tokens_to_ids("<image>"),
            tie_word_embeddings=False,
        )
    )
    begins = {"boi_token_id": words.convert_tokens_to_ids("<boi>")}
    made.generation_config = GenerationConfig(**ids_of(words), generation_kwargs=begins)
    return made.eval()


def subject(network: Any, side: int) -> JanusSubject:
    """The pipeline."""
    images = JanusImageProcessor(size={"height": FACTOR * side, "width": FACTOR * side})
    words = tokenizer(**MARKS)
    processor = JanusProcessor(images, words, TURN, num_image_tokens=side * side)
    return JanusSubject(TransformersImagePipeline(network, processor))


class JanusSubject(DrawnSubject):
    """Janus; its `generate` draws guidance pairs in one call, as mmspec does."""

    def theirs(self, rows: int, cache: Cache) -> Tensor:
        model: Any = self.pipe.image_model(self.network)
        ids, mask = model.condition([PROMPT] * rows, None, False, None)
        count = model.side**2
        return self.network.generate(
            input_ids=ids,
            attention_mask=mask.long(),
            generation_mode="image",
            guidance_scale=JanusImageModel.guidance_scale,
            top_k=JanusImageModel.top_k,
            max_new_tokens=count,
            **self.drawing,
            **own_cache(self.network, cache),
        )
