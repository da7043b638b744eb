"""A cache of transformers that a caller hands in: what it knows is not read again, and it grows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...engine.cache import KVCache
from ...engine.draft import Context
from ...models.guided import GuidedDecoder
from ...models.transformers.cache_view import together
from ...models.transformers.prompted import PromptedDecoder, refuse
from ...models.transformers.rearranged import halved, side_by_side


class HandedCache:
    """`past_key_values` of a call, as `Memory` is of a `Chat`: of one row, without padding.

    Args:
        cache: holds keys and values of the prompt's first tokens, or none yet.

    Raises:
        InputError: it is of a kind that speculation can't extend.
    """

    def __init__(self, cache: Any) -> None:
        if not isinstance(cache, DynamicCache) or type(cache) is not DynamicCache:
            refuse(f"a cache of the class {type(cache).__name__}; a DynamicCache it takes")
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            refuse("a cache whose layers are not all of full attention")
        self.cache = cache

    def recall(self, target: GuidedDecoder, prompt: Tensor) -> None:
        """Give a target that has not started what is known of its prompt `[1, T]`.

        Raises:
            InputError: the cache is of no use to this prompt, or no token stands behind what is
                known.
        """
        known, fault = self.cache.get_seq_length(), _misfit(target, prompt)
        if fault is not None:
            refuse(f"past_key_values {fault}")
        if known >= prompt.shape[1]:
            refuse(
                f"past_key_values of {known} tokens for a prompt of {prompt.shape[1]}: give the "
                "whole conversation, the new turn included"
            )
        if known:
            target.earlier = self._taken(target.decoder, known), known

    @classmethod
    def left_by(
        cls, target: GuidedDecoder, prompt: Tensor, context: Context
    ) -> DynamicCache | None:
        """A new cache of a generation that is over; None: of this prompt there is none."""
        if _misfit(target, prompt) is not None:
            return None
        decoder: Any = target.decoder
        made = cls(DynamicCache(config=decoder.config))
        made.keep(target, prompt, context)
        return made.cache

    def keep(self, target: GuidedDecoder, prompt: Tensor, context: Context) -> None:
        """Append what a generation that is over has read; its last token it never read."""
        known, read = self.cache.get_seq_length(), target.offset + max(0, context.base[0] - 1)
        decoder: Any = target.decoder
        if target.cache is None:
            return
        with torch.inference_mode(False):
            for place, (layer, widths) in enumerate(decoder.stored):
                keys, values = (x[:, :, known:] for x in target.cache.read(place, read))
                both = zip((halved(keys) if decoder.paired else keys, values), widths, strict=True)
                self.cache.update(*(x[..., :width].clone() for x, width in both), layer)

    def _taken(self, decoder: Any, known: int) -> KVCache:
        """Copy what is known, as the decoder stores it."""
        assert isinstance(decoder, PromptedDecoder)
        cache = decoder.cache(1, known)
        for place, (layer, _) in enumerate(decoder.stored):
            keys, values = self.cache.layers[layer].keys, self.cache.layers[layer].values
            keys = side_by_side(keys) if decoder.paired else keys
            cache.write(place, together(keys, values), 0)
        return cache


def _misfit(target: GuidedDecoder, prompt: Tensor) -> str | None:
    """Why a cache of transformers can't hold what this target reads; None: it can."""
    decoder: Any = target.decoder
    if target.copies * len(prompt) != 1:
        return "of several rows, or under guidance"
    if target.offset != prompt.shape[1]:
        return "of a prompt that is padded, compressed or given as inputs_embeds"
    if decoder.masks.window is not None:
        return "of a model whose layers have windows"
    if decoder.recurrent.modules:
        return "of a model whose layers keep a state"
    return None
