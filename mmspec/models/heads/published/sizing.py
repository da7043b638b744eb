"""Sizes of a head's layers that its files leave out: the target's, by the shapes of the tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import nn
from transformers import PreTrainedModel

from ....errors import InputError
from .attention import HeadAttention

_PICTURES = ("mrope_section", "mrope_interleaved", "partial_rotary_factor")


def take_sizes(head: nn.Module, target: PreTrainedModel) -> dict[str, Any]:
    """Give a head's layers the target's head size and norms' epsilon.

    Returns:
        Keys of `config.json` that say so, the target's rotary positions among them: of text, as
        the layer is a plain Llama's.

    Raises:
        InputError: the head's queries and keys can't be divided into heads of the target's size.
    """
    text = target.config.get_text_config().to_dict()
    dim = text.get("head_dim") or text["hidden_size"] // text["num_attention_heads"]
    layers = [module for module in head.modules() if isinstance(module, HeadAttention)]
    queries, keys = layers[0].q_proj.out_features, layers[0].k_proj.out_features
    if queries % dim or keys % dim or queries % keys:
        raise InputError(
            f"the draft head has queries of {queries} numbers and keys of {keys}, and this "
            f"{type(target).__name__} has heads of {dim}; load the head that was trained for this "
            "target"
        )
    sizes = replace(
        layers[0].sizes,
        num_attention_heads=queries // dim,
        num_key_value_heads=keys // dim,
        head_dim=dim,
        rms_norm_eps=float(text.get("rms_norm_eps") or 1e-6),
    )
    for layer in layers:
        layer.sizes = sizes
    for module in head.modules():
        if isinstance(module, nn.RMSNorm):
            module.eps = sizes.rms_norm_eps
    told = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    return {
        **{key: getattr(sizes, key) for key in (*told, "head_dim", "rms_norm_eps")},
        "max_position_embeddings": text.get("max_position_embeddings", 2048),
        "rope_parameters": _plain_rope(text.get("rope_parameters") or {}),
    }


def _plain_rope(rope: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary positions of a text without pictures."""
    if any(isinstance(value, dict) for value in rope.values()):  # layers of several kinds
        rope = rope.get("full_attention") or {}
    plain = {key: value for key, value in rope.items() if key not in _PICTURES}
    if plain.get("rope_type") == "mrope":
        plain["rope_type"] = "default"
    return plain
