"""Attention and keys of a layer of a vision tower, for compressors.

Recomputed from what that layer read, by its own projections, so that the tower may run any kind of
attention. Towers of transformers whose layers have `q_proj` and `k_proj`: CLIP, SigLIP, Idefics3 /
SmolVLM, InternVL. Qwen's towers, which pack images into one row, are in `packed_tower`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..methods.registry import COMPRESSORS


@dataclass
class TowerCues:
    """Attention and keys of one call of the tower.

    Attributes:
        attention: `[B, N]`, mean over heads: from the class token, where there is one, or the mean
            that each token gets from all (that are no padding).
        keys: `[B, N, H · D]`, of the same tokens, heads side by side.
        heads: H.
    """

    attention: Tensor | None = None
    keys: Tensor | None = None
    heads: int = 1

    def inputs(self, name: str) -> dict[str, Tensor]:
        """Attention and keys in the form that the compressor called `name` is published for.

        Raises:
            InputError: no such compressor, or the tower has not run yet.
        """
        chosen = COMPRESSORS.get(name)
        if self.attention is None or self.keys is None:
            raise InputError("the vision tower has shown nothing yet; run it inside `watch`")
        keys = self.keys
        if chosen.mean_keys:
            keys = keys.unflatten(-1, (self.heads, -1)).mean(-2)
        given = {"attention": self.attention, "keys": keys}
        return {key: given[key] for key in chosen.uses if key in given}

    def blocks(self, side: int) -> TowerCues:
        """Join every `side` × `side` patches, where the projector makes one token of them.

        Patches stand row by row on a square, as InternVL's and Idefics3's pixel shuffle wants them.
        Attention is summed, keys are averaged.

        Raises:
            InputError: the patches don't fill a square of such blocks.
        """
        assert self.attention is not None
        assert self.keys is not None
        patches = self.attention.shape[1]
        across = math.isqrt(patches) // side
        if (across * side) ** 2 != patches:
            raise InputError(f"{patches} patches are no square of blocks of {side} × {side}")
        grid = (across, side, across, side)
        attention = self.attention.unflatten(1, grid).sum((2, 4)).flatten(1)
        keys = self.keys.unflatten(1, grid).mean((2, 4)).flatten(1, 2)
        return TowerCues(attention, keys, self.heads)


@contextmanager
def watch(tower: nn.Module, layer: int = -2) -> Iterator[TowerCues]:
    """Watch a layer's attention and keys in the last call of the tower inside this context.

        with watch(model.vision_tower, COMPRESSORS.get("visionzip").layer) as seen:
            features = model.get_image_features(pixels).pooler_output
        compress("visionzip", features, 64, **seen.inputs("visionzip"))

    Args:
        tower: a vision model of transformers.
        layer: which of its layers; the penultimate one is what LLaVA's features come from.

    Raises:
        InputError: the tower is of an unknown kind or has no such layer.
    """
    attention, seen = _attention(tower, layer), TowerCues()
    embeddings = getattr(tower, "embeddings", None)
    first = int(any(hasattr(embeddings, name) for name in ("class_embedding", "cls_token")))

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        found = cues(module, hidden, mask, first)
        seen.attention, seen.keys, seen.heads = found.attention, found.keys, found.heads

    hook = attention.register_forward_pre_hook(look, with_kwargs=True)
    try:
        yield seen
    finally:
        hook.remove()


@torch.no_grad()
def cues(module: Any, hidden: Tensor, mask: Tensor | None = None, first: int = 0) -> TowerCues:
    """Attention and keys of an attention module over what it reads.

    Args:
        module: with `q_proj`, `k_proj`, `num_heads`, `scale`; maybe `q_norm` and `k_norm`.
        hidden: `[B, T, C]`, its input (behind the layer's norm).
        mask: `[B, 1, T, T]` of its keys, True where to look, or added to the logits.
        first: class tokens in front; attention is that of the first of them.
    """
    queries, keys = module.q_proj(hidden[:, :1] if first else hidden), module.k_proj(hidden)
    if hasattr(module, "q_norm"):
        queries, keys = module.q_norm(queries), module.k_norm(keys)
    heads: int = module.num_heads
    q, k = (x.unflatten(-1, (heads, -1)).transpose(1, 2) for x in (queries, keys))
    logits = q @ k.transpose(2, 3) * module.scale  # [B, H, Q, T]
    if mask is not None:
        mask = mask[..., : logits.shape[2], :]
        boolean = mask.dtype == torch.bool
        logits = logits.masked_fill(~mask, -torch.inf) if boolean else logits + mask
    weights = logits.float().softmax(-1).mean(1)  # [B, Q, T]
    if mask is None or first:
        attention = weights.mean(1)
    else:  # padding looks as well, but does not count
        real = (mask if mask.dtype == torch.bool else mask >= 0).any(2)[:, 0].to(weights.dtype)
        attention = (weights * real[..., None]).sum(1) / real.sum(1, keepdim=True)
    return TowerCues(attention[:, first:], keys[:, first:], heads)


def _attention(tower: nn.Module, layer: int) -> nn.Module:
    """The attention module of a layer."""
    encoder = getattr(tower, "encoder", None)
    layers = getattr(encoder, "layers", getattr(encoder, "layer", None))
    name = type(tower).__name__
    if layers is None:
        raise InputError(f"can't watch {name}; pass the vision tower, one with encoder layers")
    if not -len(layers) <= layer < len(layers):
        raise InputError(f"{name} has {len(layers)} layers and no layer {layer}")
    block = layers[layer]
    module = getattr(block, "self_attn", getattr(block, "attention", None))
    if not (hasattr(module, "q_proj") and hasattr(module, "k_proj") and hasattr(module, "scale")):
        raise InputError(f"can't watch {name}; its layers have no q_proj, k_proj and scale")
    assert isinstance(module, nn.Module)
    return module
