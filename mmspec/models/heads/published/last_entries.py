"""Keys and values of a target's last layer, for drafters that attend to them (LongSpec)."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from ....engine.cache import KVCache
from ....errors import InputError
from ...transformers.cache_view import cache_name
from ...transformers.causal import CausalDecoder
from ...transformers.rearranged import side_by_side
from .attention import rotate
from .rotary import HeadRotary

_TRIAL = 4097, 1023, 517  # a position on three axes, so far that slow pairs turn, too
_STORED = "keys", "values"


class LastEntries:
    """View of what the last layer of a decoder's model has stored; it is never written to.

    Args:
        decoder: of the target.

    Attributes:
        kv_heads, head_dim: of the keys and values.
        rotary: positions of the keys, for queries that meet them.

    Raises:
        InputError: the layer keeps no keys and values of all tokens, or ones that are not turned by
            rotary positions as published heads turn theirs.
    """

    def __init__(self, decoder: CausalDecoder) -> None:
        self.decoder = decoder
        name, self._last = type(decoder.model).__name__, len(decoder.layers) - 1
        if decoder.masks.slides(decoder.config, self._last):
            raise InputError(
                f"the last layer of {name} has a sliding window; a drafter that attends to its "
                "keys needs those of all tokens: choose another method"
            )
        stored = None if decoder.alibi.layers else self._trial()
        if stored is None:
            raise InputError(
                f"the last layer of {name} keeps no plain rotary keys and values of its own for a "
                "drafter to attend to: choose another method"
            )
        self.kv_heads, self.head_dim, self.rotary = stored

    def read(self, cache: KVCache, length: int) -> tuple[Tensor, Tensor]:
        """Keys and values `[R, kv_heads, length, head_dim]` of the first columns of a cache."""
        place = [layer for layer, _ in self.decoder.stored].index(self._last)
        keys, values = cache.read(place, length)
        return keys[..., : self.head_dim], values[..., : self.head_dim]

    def ordered(self, queries: Tensor) -> Tensor:
        """Queries `[…, head_dim]` with their numbers in the order that stored keys have."""
        return queries if self.decoder._rearranged is None else side_by_side(queries)

    @torch.no_grad()
    def _trial(self) -> tuple[int, int, HeadRotary] | None:
        """Heads of keys, their width and positions; None: a pass shows that they are not plain.

        A token's key at one position is to be that at another, turned.
        """
        decoder, config, found = self.decoder, self.decoder.config, []
        heads = getattr(config, "num_attention_heads", None)
        if not heads:
            return None
        rotary = target_rotary(
            decoder.model, getattr(config, "head_dim", None) or config.hidden_size // heads
        )
        if rotary is None:
            return None
        device = decoder.embeddings.device
        x = decoder.embed(torch.tensor([[len(decoder.embeddings) // 2]], device=device))
        for place in ((0, 0, 0), _TRIAL):
            positions = torch.tensor(place, device=device)[: rotary.axes, None, None]
            positions = positions[0] if rotary.axes == 1 else positions
            _, keys, values = whole_pass(decoder, x, positions, x.new_zeros(1, 1, 1, 1))
            if keys is None or values is None or keys.shape != values.shape:
                return None
            found.append(keys.transpose(1, 2))
        first, own = found
        near = 0.03 * float(own.abs().max())  # for half precision
        if float((first - own).abs().max()) < near:
            return None
        other = copy(rotary)
        other.interleaved = not rotary.interleaved  # some models' axes take turns unasked
        for kind in (rotary, other):
            # keys at position 0 have the scaling of the positions already
            turned = rotate(first / kind.scaling, kind(positions, x.dtype))
            if float((turned - own).abs().max()) < near:
                return own.shape[2], own.shape[3], kind
        return None


def whole_pass(
    decoder: CausalDecoder, x: Tensor, positions: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Hidden states `[R, N, D]` of inputs, and the last layer's keys and values `[R, kv, N, dim]`.

    A pass of transformers' own, without a cache in front. None: the layer stores none.

    Args:
        x: inputs `[R, N, D]`.
        positions: `[R, N]`, or `[axes, R, N]`.
        mask: `[R, 1, N, N]`, added to the scores.
    """
    columns = torch.arange(x.shape[1], device=x.device)
    masks = decoder.masks.of(mask, lambda: (columns[:, None] - columns)[None])
    cache = DynamicCache(config=decoder.config)
    out = decoder.body(
        inputs_embeds=x,
        attention_mask=masks,
        position_ids=positions,
        use_cache=True,
        **{cache_name(decoder.model): cache},
    )
    layers: list[Any] = cache.layers[len(decoder.layers) - 1 :]  # some layers share others' keys
    keys, values = (getattr(layers[0], name, None) if layers else None for name in _STORED)
    return out.last_hidden_state, keys, values


def target_rotary(target: PreTrainedModel, head_dim: int) -> HeadRotary | None:
    """Rotary positions of a target's keys; None: its configuration states none that are known."""
    config: Mapping[str, Any] = target.config.get_text_config().to_dict()
    rope = config.get("rope_parameters")
    if not rope:
        return None
    if any(isinstance(value, dict) for value in rope.values()):  # layers of several kinds
        rope = rope.get("full_attention") or {}
    turned = int(head_dim * float(rope.get("partial_rotary_factor") or 1.0))
    try:
        return HeadRotary({**config, "rope_parameters": rope, "rope_scaling": None}, turned)
    except (InputError, KeyError):
        return None
