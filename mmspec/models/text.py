"""Captions to T5 features: left-padded, as LlamaGen reads them, or right-padded, as Wan does."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


def encode_captions(
    tokenizer: Any, encoder: nn.Module, captions: list[str], length: int
) -> tuple[Tensor, Tensor]:
    """T5 features of captions, moved to the right end of a prefix of `length`.

    Returns:
        features `[B, length, caption_dim]`, zero where padded, and the mask `[B, length]`, True
        where a caption token stands. Captions longer than `length` are cut, as T5's tokenizer does.
    """
    ids, mask = _tokenized(tokenizer, encoder, captions, length)
    features = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    shift = length - mask.sum(-1)  # right-padded to left-padded: roll each row by its own padding
    order = (torch.arange(length, device=mask.device) - shift[:, None]) % length
    features = features.gather(1, order[..., None].expand(-1, -1, features.shape[-1]))
    mask = mask.gather(1, order)
    return features * mask[..., None], mask


def prompt_features(tokenizer: Any, encoder: nn.Module, prompts: list[str], length: int) -> Tensor:
    """T5 features of prompts `[B, length, caption_dim]`, zero where padded, as Wan reads them.

    Prompts longer than `length` tokens are cut, as T5's tokenizer does.
    """
    ids, mask = _tokenized(tokenizer, encoder, prompts, length)
    features: Tensor = encoder(input_ids=ids, attention_mask=mask).last_hidden_state
    return features * mask[..., None]


def _tokenized(
    tokenizer: Any, encoder: nn.Module, texts: list[str], length: int
) -> tuple[Tensor, Tensor]:
    """Ids and mask `[B, length]` of texts, where the encoder is."""
    device = next(encoder.parameters()).device
    batch = tokenizer(
        [text.strip().lower() for text in texts],
        max_length=length,
        padding="max_length",
        truncation=True,
        return_tensors="pt",
    )
    return batch["input_ids"].to(device), batch["attention_mask"].to(device).bool()
