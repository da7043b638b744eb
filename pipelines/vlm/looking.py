"""Attention that a language model pays to a prompt, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...models.call_masks import additive, prefix_mask
from ...models.transformers.looking import attention_told
from ...models.transformers.qwen_vl import deep_inputs
from ...models.transformers.vlm import VisualPrompt, VlmDecoder


@torch.inference_mode()
def look(
    decoder: VlmDecoder,
    prompt: VisualPrompt,
    layers: Sequence[int],
    see: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """The results of `see` on attention weights `[R, H, T, T]`, one of each layer, in their order.

    The layers behind the last of these do not run.
    """
    width = prompt.mask.shape[1]
    place = torch.arange(width, device=prompt.mask.device)
    groups = prompt.both_ways
    groups = torch.full_like(prompt.mask, -1, dtype=torch.long) if groups is None else groups
    seen = prefix_mask(place <= place[:, None], (~prompt.mask).sum(1), groups)
    mask = additive(seen, prompt.embedded.dtype)
    inputs = {} if prompt.deep is None else deep_inputs(prompt, place)
    made: dict[int, Tensor] = {}

    def read(layer: int, weights: Tensor) -> None:
        if layer in layers:
            made[layer] = see(weights)

    with (
        attention_told(decoder, read),
        decoder.running([n <= max(layers) for n in range(len(decoder.blocks()))]),
    ):
        decoder.body(
            inputs_embeds=prompt.embedded,
            attention_mask=decoder.masks.of(mask, lambda: (place[:, None] - place)[None]),
            position_ids=prompt.positions[..., :width],
            use_cache=False,
            **inputs,
        )
    return [made[layer] for layer in layers]
