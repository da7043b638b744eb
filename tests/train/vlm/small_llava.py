"""A tiny LLaVA of random weights, whose words depend on what it sees and on each other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mmspec.train.tokenizers import exchange_tokenizer
from mmspec.train.vlm import target as vlm_target
from mmspec.train.vlm.recipe import build_processor


def save_small_llava(path: Path, seed: int = 0) -> None:
    """Write the model and its processor."""
    words = exchange_tokenizer()
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        torch.manual_seed(seed)
        small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2)
        patch.setattr(vlm_target, "SIDE", 32)
        patch.setattr(vlm_target, "VISION", {**small, "num_attention_heads": 2})
        patch.setattr(vlm_target, "TEXT", {"target": {**small, "num_attention_heads": 2}})
        model = vlm_target.build_model("target", words)
        for weight in model.parameters():
            nn.init.normal_(weight, mean=float(weight.ndim == 1), std=0.5)
        model.save_pretrained(path)
        build_processor(words, 32, vlm_target.PATCH).save_pretrained(path)
