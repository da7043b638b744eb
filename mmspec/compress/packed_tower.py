"""Attention and keys of Qwen's vision towers, which pack the patches of all images into one row.

Qwen2-VL, Qwen2.5-VL, Qwen3-VL: no class token; every `spatial_merge_size²` patches that follow each
other become one visual token. Qwen2.5-VL's patches stand in the order of its attention windows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError
from .tower import TowerCues


@contextmanager
def watch_packed(tower: nn.Module, layer: int | None = None) -> Iterator[list[TowerCues]]:
    """Watch a block's attention and keys in the last call of the tower inside this context.

    Attention is the mean over heads and over the patches of the same frame (of the same window in a
    windowed block), summed over the patches of a visual token; keys are averaged over them. What is
    given holds of every image or video its `TowerCues` with one row `[1, N]`, N visual tokens in
    the order of the tower's output.

    Args:
        tower: `model.visual`.
        layer: which block; None: the last that sees whole frames.

    Raises:
        InputError: the tower is of another kind or has no such block.
    """
    name, blocks = type(tower).__name__, getattr(tower, "blocks", None)
    if not isinstance(blocks, nn.ModuleList) or not hasattr(blocks[0].attn, "qkv"):
        raise InputError(f"can't watch {name}; pass the vision tower of a Qwen-VL model")
    if layer is None:
        layer = max(getattr(tower, "fullatt_block_indexes", [len(blocks) - 1]))
    if not -len(blocks) <= layer < len(blocks):
        raise InputError(f"{name} has {len(blocks)} blocks and no block {layer}")
    attention: Any = blocks[layer].attn
    seen, grids = list[TowerCues](), list[Tensor]()

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        grids[:] = [kwargs["grid_thw"] if "grid_thw" in kwargs else args[1]]

    def look(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        found = packed_cues(module, hidden, kwargs["cu_seqlens"], kwargs["position_embeddings"])
        seen[:] = _images(tower, found, grids[0])

    hooks = [
        tower.register_forward_pre_hook(begin, with_kwargs=True),
        attention.register_forward_pre_hook(look, with_kwargs=True),
    ]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def packed_cues(
    module: Any, hidden: Tensor, ends: Tensor, rotary: tuple[Tensor, Tensor]
) -> TowerCues:
    """Attention and keys (before rotation) of an attention module over what it reads.

    Args:
        module: with `qkv`, `num_heads` and `scaling`.
        hidden: `[P, C]`, patches of all images.
        ends: `[S + 1]`, where each stretch that attends to itself begins, and P.
        rotary: cosines and sines `[P, D]`.
    """
    heads: int = module.num_heads
    q, k, _ = module.qkv(hidden).unflatten(-1, (3, heads, -1)).unbind(1)  # [P, H, D]
    queries, rotated = (_rotated(x, *rotary).transpose(0, 1) for x in (q, k))
    lengths = (ends[1:] - ends[:-1]).tolist()
    attention = [
        (a @ b.transpose(1, 2) * module.scaling).float().softmax(-1).mean((0, 1))
        for a, b in zip(queries.split(lengths, 1), rotated.split(lengths, 1), strict=True)
    ]
    return TowerCues(torch.cat(attention)[None], k.flatten(1)[None], heads)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`x [P, H, D]` turned in float32, its first half against its second."""
    wide, cos, sin = x.float(), cos[:, None].float(), sin[:, None].float()
    one, two = wide.chunk(2, dim=-1)
    return (wide * cos + torch.cat([-two, one], dim=-1) * sin).to(x.dtype)


def _images(tower: Any, found: TowerCues, grid: Tensor) -> list[TowerCues]:
    """Patches to visual tokens, in the order of the tower's output, cut into images."""
    assert found.attention is not None
    assert found.keys is not None
    unit = tower.spatial_merge_size**2
    attention = found.attention[0].unflatten(0, (-1, unit)).sum(1)
    keys = found.keys[0].unflatten(0, (-1, unit)).mean(1)
    if hasattr(tower, "window_size"):
        from transformers.vision_utils import get_vision_window_index

        windows, _ = get_vision_window_index(
            grid, tower.spatial_merge_size, tower.window_size, tower.patch_size
        )
        order = windows.argsort().to(attention.device)
        attention, keys = attention[order], keys[order]
    counts = (grid.prod(1) // unit).tolist()
    return [
        TowerCues(a[None], k[None], found.heads)
        for a, k in zip(attention.split(counts), keys.split(counts), strict=True)
    ]
