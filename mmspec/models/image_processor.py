"""What transformers' processors are asked for by every family of image models."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tokenize(processor: Any, texts: list[str], **options: Any) -> tuple[Tensor, Tensor]:
    """Left-padded token ids `[B, T]` of texts, and the mask `[B, T]`, True where a token stands."""
    batch = processor(text=texts, padding=True, padding_side="left", return_tensors="pt", **options)
    return batch["input_ids"], batch["attention_mask"].bool()


def to_unit_range(pixels: Tensor, image_processor: Any) -> Tensor:
    """Pixels in [0, 1] of what the model decoded, `[B, 3, H, W]`: its processor's inverse.

    The processor itself goes on to whole bytes, rounded down.
    """
    pixels = pixels.float()
    if image_processor.do_normalize:
        mean, std = (
            torch.tensor(value, device=pixels.device).expand(pixels.shape[1])[:, None, None]
            for value in (image_processor.image_mean, image_processor.image_std)
        )
        pixels = pixels * std + mean
    return pixels.clamp(0, 1)
