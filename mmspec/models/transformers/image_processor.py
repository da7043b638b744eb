"""Base of the image models of transformers: embeddings, codes and processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .prompt_inputs import one_start, spelled


class VqImageModel:
    """Base of the image models: token ids in front, a VQ decoder behind; see `ImageModel`.

    Args:
        network: one of transformers' models, with its image tokenizer at `model.vqmodel`.
        processor: its own, or a tokenizer.
    """

    def __init__(self, network: Any, processor: Any) -> None:
        self.network, self.processor = network, processor

    @staticmethod
    def classes_of(family: str) -> dict[str, str]:
        """The `component_classes` of one of transformers' families."""
        model, processor = f"{family}ForConditionalGeneration", f"{family}Processor"
        return {"model": f"transformers:{model}", "processor": f"transformers:{processor}"}

    def embed(self, condition: Tensor) -> Tensor:
        return self.network.get_input_embeddings()(condition)

    def codebook(self) -> Tensor:
        return self.network.model.vqmodel.quantize.embedding.weight


def tokenize(
    processor: Any, texts: list[str], turn: Callable[[str], str] | None = None, **options: Any
) -> tuple[Tensor, Tensor]:
    """Left-padded token ids `[B, T]` of texts, and the mask `[B, T]`, True where a token stands.

    Args:
        processor: of transformers.
        texts: a user's; the processor's placeholders in them are text.
        turn: what a chat template makes of a text; None: it stays.
        options: of the processor's call.
    """

    def lay_out(texts: list[str]) -> dict[str, Tensor]:
        how = dict(options)
        if turn is not None:
            texts = [turn(text) for text in texts]
            how |= one_start(processor.tokenizer, texts)
        batch = processor(text=texts, padding=True, padding_side="left", return_tensors="pt", **how)
        return {name: batch[name] for name in ("input_ids", "attention_mask")}

    batch = spelled(processor, texts, lay_out)
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
