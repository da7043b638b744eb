"""Fuzzy layers: attentions of layers in a row that all read what goes into the first of them.

Wu et al. 2025, "EasySpec: Layer-Parallel Speculative Decoding for Efficient Multi-GPU Utilization":
such attentions wait for nothing of each other, so that several devices may run them at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from ..errors import InputError
from .repacked import Way

# a layer that adds an attention of one norm, and then something of another, to what it was given
_PARTS = {"input_layernorm", "self_attn", "post_attention_layernorm"}


def sources(layers: int, size: int) -> list[int]:
    """Layer whose input each layer's attention reads, of groups of `size` layers.

    The first and the last layer read their own; the last group may be smaller.
    """
    inner = [1 + n // size * size for n in range(max(0, layers - 2))]
    return [0, *inner, layers - 1][:layers]


def shared_inputs(blocks: Sequence[nn.Module], reads: Sequence[int]) -> list[Way]:
    """For `patched`: attentions read the norm of what goes into the layer `reads[n]`.

    Layers add what attention makes of that to their own inputs, and their MLPs read the sum.

    Raises:
        InputError: the layers have no norm that attention alone reads.
    """
    known: dict[int, Tensor] = {}
    ways: list[Way] = []
    for number, (block, read) in enumerate(zip(blocks, reads, strict=True)):
        parts = dict(block.named_children())
        if not parts.keys() >= _PARTS:
            raise InputError(
                f"{type(block).__name__} has no norm in front of attention alone, so that several "
                "layers can't read one input; use method 'draft'"
            )
        norm = parts["input_layernorm"]
        ways.append((norm, "forward", partial(_shared, norm.forward, known, number, read)))
    return ways


def _shared(
    forward: Any, known: dict[int, Tensor], number: int, read: int, hidden: Tensor, *args: Any
) -> Any:
    if number == read:
        known.clear()
        known[number] = hidden
    return forward(known[read].to(hidden.device), *args)
