"""Published sizes of models that draw, and how much of them a machine's memory holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import torch
from torch import nn

from mmspec.errors import InputError


@dataclass(frozen=True)
class Published:
    """A checkpoint's sizes.

    Attributes:
        family: name of its class, see `families.FAMILIES`.
        checkpoint: where its config was published.
        layers: of the whole model.
        codes: of its image tokenizer.
        sizes: of its language model, as its class names them in config.json.
    """

    family: str
    checkpoint: str
    layers: int
    codes: int
    sizes: dict[str, Any] = field(default_factory=dict)


JANUS_WORDS = 102400
MODELS = {
    "llamagen": Published(
        "llamagen",
        "FoundationVision/LlamaGen, GPT-XL, t2i",
        36,
        16384,
        {"dim": 1280, "n_head": 20, "cls_token_num": 120, "caption_dim": 2048},
    ),
    "janus": Published(
        "janus",
        "deepseek-ai/Janus-Pro-1B",
        24,
        16384,
        {
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_attention_heads": 16,
            "num_key_value_heads": 16,
            "vocab_size": JANUS_WORDS,
        },
    ),
    "janus-7b": Published(
        "janus",
        "deepseek-ai/Janus-Pro-7B",
        30,
        16384,
        {
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "vocab_size": JANUS_WORDS,
        },
    ),
    "emu3": Published(
        "emu3",
        "BAAI/Emu3-Gen",
        32,
        32768,
        {
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "vocab_size": 184622,
        },
    ),
    "glm-image": Published(
        "glm-image",
        "zai-org/GLM-Image",
        40,
        16384,
        {
            "hidden_size": 4096,
            "intermediate_size": 13696,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
            "vocab_size": 168064,  # of which 16512 are of pictures
            "vision_vocab_size": 16512,
        },
    ),
}

# the first that fits is taken
FORMS = tuple(
    (Fraction(1, parts), dtype) for parts in (4, 8) for dtype in (torch.float32, torch.bfloat16)
)


@dataclass(frozen=True)
class Form:
    """A model as it is measured: its share of the published depth, its dtype and its bytes."""

    share: Fraction
    layers: int
    dtype: torch.dtype
    nbytes: int


def fitting(name: str, model: Published, build: Callable[[int], nn.Module], most: float) -> Form:
    """The first of `FORMS` whose weights take at most `most` bytes.

    Args:
        build: makes the network with so many layers.

    Raises:
        InputError: none does.
    """
    smallest = 0
    for share, dtype in FORMS:
        layers = max(1, int(model.layers * share))
        with torch.device("meta"):
            count = sum(weight.numel() for weight in build(layers).parameters())
        smallest = count * dtype.itemsize
        if smallest <= most:
            return Form(share, layers, dtype, smallest)
    raise InputError(
        f"{name} takes {smallest / 2**30:.2g} GiB at 1/8 of its depth in bfloat16; "
        "raise --memory or leave it out"
    )
