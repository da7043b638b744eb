"""A cache of transformers that a caller hands in: what it knows is not read again, and it grows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from ...engine.cache import KVCache
from ...engine.draft import Context
from ...models.guided import GuidedDecoder
from ...models.transformers.cache_view import CACHE_NAMES, together
from ...models.transformers.prompted import PromptedDecoder, refuse
from ...models.transformers.rearranged import halved, side_by_side


class HandedCache:
    """Cache of a call, as `Memory` is of a `Chat`: of all rows of a prompt.

    It holds the prompt's first columns, padding in front included. What rows of unequal lengths
    leave is as long as the shortest: of the others, the next turn reads the rest again.

    Args:
        cache: holds keys and values of the prompt's first columns, or none yet.
        name: of the argument, for what is said about it.

    Raises:
        InputError: it is of a kind that speculation can't extend.
    """

    def __init__(self, cache: Any, name: str = CACHE_NAMES[0]) -> None:
        self.name = name
        if not isinstance(cache, DynamicCache) or type(cache) is not DynamicCache:
            refuse(f"a cache of the class {type(cache).__name__}; a DynamicCache it takes")
        if any(type(layer) is not DynamicLayer for layer in cache.layers):
            refuse(
                f"{name} whose layers are not all of full attention: of windows it holds the last "
                "tokens alone, in no order that our own has; leave it out, to read the prompt whole"
            )
        self.cache = cache

    def recall(self, target: GuidedDecoder, prompt: Tensor) -> None:
        """Give a target that has not started what is known of its prompts `[B, T]`.

        Raises:
            InputError: the cache is of no use to this prompt, or no token stands behind what is
                known.
        """
        known, fault = self.cache.get_seq_length(), _misfit(target, prompt)
        if fault is not None:
            refuse(f"{self.name} {fault}")
        if known >= prompt.shape[1]:
            refuse(
                f"{self.name} of {known} tokens for a prompt of {prompt.shape[1]}: give the "
                "whole conversation, the new turn included"
            )
        rows = {len(layer.keys) for layer in self.cache.layers if known}
        if rows - {len(prompt)}:
            refuse(f"{self.name} of {rows.pop()} rows for {len(prompt)} prompts")
        target.stays, blank = True, prompt.shape[1] - target.offset
        if known > blank:
            target.earlier = self._taken(target.decoder, len(prompt), blank), known - blank

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
        blank = prompt.shape[1] - target.offset
        known, read = self.cache.get_seq_length(), target.offset + max(0, min(context.base) - 1)
        decoder: Any = target.decoder
        if target.cache is None:
            return
        front, first = max(0, blank - known), max(0, known - blank)
        with torch.inference_mode(False):
            for place, (layer, widths) in enumerate(decoder.stored):
                keys, values = (x[:, :, first:] for x in target.cache.read(place, read))
                pair = zip((halved(keys) if decoder.paired else keys, values), widths, strict=True)
                # columns that are padding in every row were never read
                both = (F.pad(x[..., :width].clone(), (0, 0, front, 0)) for x, width in pair)
                self.cache.update(*both, layer)

    def _taken(self, decoder: Any, rows: int, blank: int) -> KVCache:
        """Copy what is known behind the `blank` columns, as the decoder stores it."""
        assert isinstance(decoder, PromptedDecoder)
        cache = decoder.cache(rows, self.cache.get_seq_length() - blank)
        for place, (layer, _) in enumerate(decoder.stored):
            of = self.cache.layers[layer]
            keys, values = of.keys[:, :, blank:], of.values[:, :, blank:]
            keys = side_by_side(keys) if decoder.paired else keys
            cache.write(place, together(keys, values), 0)
        return cache


def _misfit(target: GuidedDecoder, prompt: Tensor) -> str | None:
    """Why a cache of transformers can't hold what this target reads; None: it can."""
    decoder: Any = target.decoder
    if target.copies != 1:
        return "under guidance"
    if target.running.rows != len(prompt):
        return "of prompts that are answered a few at a time"
    if target.compact:
        return "of a prompt of which target_cache keeps some entries"
    if target.setting.mask.shape != prompt.shape:
        return "of a prompt that is compressed or given as inputs_embeds"
    if decoder.masks.window is not None:
        return "of a model whose layers have windows; without it the prompt is read whole"
    if decoder.recurrent.modules:
        return "of a model whose layers keep a state"
    return None
