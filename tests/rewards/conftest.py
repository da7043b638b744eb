"""Pictures, prompts and tiny checkpoints in published formats, of random weights."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

WORDS = ["a", "photo", "of", "red", "blue", "circle", "square", "and", "two"]


@pytest.fixture(scope="session")
def pictures() -> list[Image.Image]:
    """Five pictures of different sizes: coarse noise, so that resizing leaves something."""
    rng = np.random.default_rng(0)
    sizes = [(40, 40), (61, 37), (33, 80), (224, 100), (300, 301)]
    coarse = rng.integers(0, 256, (len(sizes), 6, 6, 3), dtype=np.uint8)
    return [
        Image.fromarray(noise).resize(size, Image.Resampling.NEAREST)
        for noise, size in zip(coarse, sizes, strict=True)
    ]


@pytest.fixture(scope="session")
def prompts() -> list[str]:
    return [
        "a photo of a red circle",
        "blue",
        "A photo of two blue squares",
        "a circle and a square and a circle and a red square and a blue square and two circles",
        "of",
    ]


@pytest.fixture(scope="session")
def clip_config() -> dict:
    """A tiny model in the terms of `open_clip_config.json`, with its own words."""
    return {
        "model_cfg": {
            "embed_dim": 12,
            "vision_cfg": {
                "image_size": 32,
                "layers": 2,
                "width": 16,
                "head_width": 8,
                "patch_size": 8,
            },
            "text_cfg": {
                "context_length": 10,
                "hf_tokenizer_name": "in this folder",
                "vocab_size": len(WORDS) + 3,
                "width": 16,
                "heads": 2,
                "layers": 2,
                "pool_type": "eos",
                "eos_id": 1,
            },
        },
        "preprocess_cfg": {"mean": [0.5, 0.4, 0.3], "std": [0.5, 0.6, 0.7]},
    }


def shaken(model: torch.nn.Module, seed: int = 1) -> torch.nn.Module:
    """The model with weights that leave no part without effect, norms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, value in model.named_parameters():
            if value.dim():  # not the logit scale
                noise = torch.randn(value.shape, generator=generator)
                fan_in = value[0].numel() if value.dim() > 1 else 10
                spread = 1.0 if "token_embedding" in name else value.dim() / fan_in**0.5
                one = float(value.dim() == 1 and name.endswith("weight"))  # of a norm
                value.copy_(noise * spread + one)
    return model.eval()


@pytest.fixture(scope="session")
def shake():
    return shaken


@pytest.fixture
def clip_folder(tmp_path, clip_config) -> Path:
    """A model as open_clip publishes them: configuration, half-precision weights, tokenizer."""
    import open_clip
    from safetensors.torch import save_file
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path / "tiny-clip"
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(clip_config))
    with torch.random.fork_rng():
        model = shaken(open_clip.CLIP(**json.loads(json.dumps(clip_config["model_cfg"]))))
    weights = {name: value.half() for name, value in model.state_dict().items()}
    save_file(weights, folder / "open_clip_model.safetensors")
    vocabulary = {word: i for i, word in enumerate(["<pad>", "</s>", "<unk>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.normalizer = normalizers.Lowercase()
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder)
    return folder
