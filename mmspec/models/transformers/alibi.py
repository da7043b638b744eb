"""Models whose attention knows positions by a bias on its scores alone (ALiBi).

A key's bias is its position times a slope of the head (Press et al. 2022). Models of transformers
count positions by the slots of their cache. Tokens of a draft stand at others than their slots, so
the biases are made from ours, by the model's own table, and given to the layers.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BloomModel, FalconModel, MptModel, PreTrainedModel
from transformers.models.bloom.modeling_bloom import BloomAttention
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.models.mpt.modeling_mpt import MptAttention

from ..repacked import Way

Given = tuple[Tensor, Tensor]  # biases [R, H, 1, length], and the mask [R or 1, 1, N, length]


class Alibi:
    """The biases of a model's layers, for drafts and for rows at places of their own.

    Args:
        body: the model without its output layer.

    Attributes:
        layers: its attention layers with such biases; empty: it has none.
    """

    def __init__(self, body: PreTrainedModel) -> None:
        self.layers: list[tuple[nn.Module, Callable[..., Any]]] = []
        for module in body.modules():
            if isinstance(module, BloomAttention):
                self.layers.append((module, _bloom))
            elif isinstance(module, MptAttention):
                self.layers.append((module, _mpt))
            elif isinstance(module, FalconAttention) and body.config.alibi:
                self.layers.append((module, _falcon))
        self._body = body
        self._kept: Tensor | None = None

    def ways(self, mask: Tensor, positions: Tensor, dtype: torch.dtype) -> list[Way]:
        """For `patched`: the layers of a call read the biases of their keys' positions.

        Args:
            mask: `[R or 1, 1, N, length]`, added to the scores.
            positions: of the keys `[R, length]`.
            dtype: of the inputs.
        """
        biases = self._table(positions.shape[1], dtype)[:, positions]
        given = biases.transpose(0, 1)[:, :, None], mask
        return [(layer, "forward", partial(way, layer, given)) for layer, way in self.layers]

    def _table(self, length: int, dtype: torch.dtype) -> Tensor:
        """Biases by head and position `[H, at least length]`, as the model makes them."""
        kept, device = self._kept, self._body.device
        if kept is None or kept.shape[1] < length or (kept.dtype, kept.device) != (dtype, device):
            size = 2 ** math.ceil(math.log2(max(length, 256)))
            kept = self._kept = _own_table(self._body, size, dtype)
        return kept


def _own_table(body: PreTrainedModel, size: int, dtype: torch.dtype) -> Tensor:
    """Biases `[H, size]` of a text without padding."""
    heads, device = body.num_heads, body.device
    if isinstance(body, MptModel):  # which counts from the text's end, in float32
        return body.build_mpt_alibi_tensor(heads, size, device=device)[:, 0]
    text = torch.ones(1, size, dtype=torch.long, device=device)
    if isinstance(body, BloomModel):
        return body.build_alibi_tensor(text, heads, dtype=dtype)[:, 0]
    assert isinstance(body, FalconModel)
    made = sys.modules[FalconModel.__module__].build_alibi_tensor(text, heads, dtype=dtype)
    return made[:, 0]


def _bloom(layer: BloomAttention, given: Given, *args: Any, **named: Any) -> Any:
    biases, mask = given
    named |= {"alibi": biases.flatten(0, 1), "attention_mask": mask}
    return type(layer).forward(layer, *args, **named)


def _falcon(layer: FalconAttention, given: Given, *args: Any, **named: Any) -> Any:
    """Falcon adds its biases to the mask, and with eager attention to the scores, too."""
    biases, mask = given
    both = biases / math.sqrt(layer.hidden_size // layer.num_heads) + mask
    named |= {"alibi": biases.flatten(0, 1), "attention_mask": both}
    return type(layer).forward(layer, *args, **named)


def _mpt(
    layer: MptAttention,
    given: Given,
    hidden_states: Tensor,
    position_bias: Tensor | None = None,
    cache: Any = None,
    **named: Any,
) -> tuple[Tensor, Tensor]:
    """MPT's attention; its own takes no biases by row."""
    biases, mask = given
    if cache is None:  # its name was another before transformers 5.24
        cache = named["past_key_values"]
    mixed = layer.Wqkv(hidden_states)
    if layer.clip_qkv:
        mixed = mixed.clamp(-layer.clip_qkv, layer.clip_qkv)
    queries, keys, values = (
        part.unflatten(-1, (layer.n_heads, layer.head_dim)).transpose(1, 2)
        for part in mixed.chunk(3, dim=-1)
    )
    keys, values = cache.update(keys, values, layer.layer_idx)
    scores = queries @ keys.mT * layer.softmax_scale + biases + mask
    weights = F.softmax(scores.float(), dim=-1).to(values.dtype)
    return layer.out_proj((weights @ values).transpose(1, 2).flatten(2)), weights
