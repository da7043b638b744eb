"""A cache of transformers that a caller hands in: what it knows is not read again, and it grows."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from ...engine.cache import KVCache
from ...engine.draft import Context
from ...models.guided import GuidedDecoder
from ...models.transformers.cache_view import CACHE_NAMES, together, write_columns
from ...models.transformers.prompted import PromptedDecoder, refuse
from ...models.transformers.rearranged import halved, side_by_side

_LAYERS = DynamicLayer, DynamicSlidingWindowLayer


class HandedCache:
    """Cache of a call, as `Memory` is of a `Chat`: of all rows of a prompt.

    It holds the prompt's first columns, padding in front included; of them layers with a window
    hold what the next token sees. What rows of unequal lengths leave is as long as the shortest: of
    the others, the next turn reads the rest again. Where windows have moved on from there, the
    cache stays as it was handed in.

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
        if any(type(layer) not in _LAYERS for layer in cache.layers):
            refuse(
                f"{name} with layers that keep a state or an index, where a draft can't be undone"
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
            target.earlier = self._taken(target, len(prompt), blank), known - blank

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
        known, read = self.cache.get_seq_length(), target.offset + min(target.held(context.base))
        decoder: Any = target.decoder
        if target.cache is None or not target.cache.knows(read):
            return
        first, count = max(0, known - blank), blank + read - known
        with torch.inference_mode(False):
            for place, (layer, widths) in enumerate(decoder.stored):
                keys, values = target.cache.span(place, first, read)
                pair = zip((halved(keys) if decoder.paired else keys, values), widths, strict=True)
                # columns that are padding in every row were never read, and behind a window none is
                front = count - keys.shape[2]
                both = (F.pad(x[..., :width].clone(), (0, 0, front, 0)) for x, width in pair)
                self.cache.update(*both, layer)

    def _taken(self, target: GuidedDecoder, rows: int, blank: int) -> KVCache:
        """Copy what is known behind the `blank` columns, as the decoder stores it."""
        decoder, known, since = target.decoder, self.cache.get_seq_length(), 0
        assert isinstance(decoder, PromptedDecoder)
        cache = decoder.cache(rows, known - blank, target.back)
        for place, (layer, _) in enumerate(decoder.stored):
            of = self.cache.layers[layer]
            held = of.keys.shape[2]
            slides = layer in decoder.layers and decoder.masks.slides(decoder.config, layer)
            window = decoder.masks.window if slides else None
            if held < (known if window is None else min(known, window - 1)):
                refuse(
                    f"{self.name} that holds {held} of {known} tokens in layer {layer}, which sees "
                    "more of them"
                )
            first = max(blank, known - held)
            keys, values = (x[:, :, held - (known - first) :] for x in (of.keys, of.values))
            keys = side_by_side(keys) if decoder.paired else keys
            cache.write(place, together(keys, values), first - blank)
            since = max(since, first - blank)
        if decoder.counts_columns:
            columns = torch.arange(blank, known, device=decoder.embeddings.device)
            write_columns(cache, columns.expand(rows, -1), 0)
        cache.begin_at(since, known - blank)
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
    if decoder.recurrent.modules:
        return "of a model whose layers keep a state: it can't be taken back behind a draft"
    return None
