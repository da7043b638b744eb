"""A tiny LLaVA of random weights that answers, with a processor of few words."""

from __future__ import annotations

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    CLIPImageProcessor,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
)

WORDS = "<pad> <s> </s> <image> USER: ASSISTANT: what is red blue a circle square on the left two ."
TEMPLATE = (
    "{% for m in messages %}USER: {% for c in m['content'] %}{% if c['type'] == 'image' %}<image> "
    "{% else %}{{ c['text'] }} {% endif %}{% endfor %}{% endfor %}ASSISTANT:"
)


def processor(text: str = WORDS) -> LlavaProcessor:
    words = {word: n for n, word in enumerate(text.split())}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="."))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>"},
    )
    size = {"height": 16, "width": 16}
    pictures = CLIPImageProcessor(size=size, crop_size=size, do_center_crop=False)
    return LlavaProcessor(
        pictures,
        fast,
        patch_size=8,
        vision_feature_select_strategy="default",
        chat_template=TEMPLATE,
        num_additional_image_tokens=1,
    )


def model(
    layers: int, seed: int, eos: int | None = None, words: int | None = None, image: int = 3
) -> LlavaForConditionalGeneration:
    """A model of random weights over so many words, of which `image` stands for a picture's."""
    text = dict(
        vocab_size=words or len(WORDS.split()),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=96,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=eos,
    )
    vision = dict(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=16,
        patch_size=8,
        projection_dim=16,
    )
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**vision),
        text_config=LlamaConfig(**text),
        image_token_id=image,
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = LlavaForConditionalGeneration(config)
        for weight in network.parameters():
            torch.nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.3)
    return network.eval()


def picture(seed: int) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    return Image.fromarray(pixels)
