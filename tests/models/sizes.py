"""Sizes of a small language model, for configs of Llama's kind."""

from __future__ import annotations

SMALL = dict(
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=64,
)
