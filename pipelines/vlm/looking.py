"""Attention that a language model pays to a prompt, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...models.call_masks import additive
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
    seen = (place <= place[:, None]) & (prompt.mask[:, None] | (place == place[:, None]))
    inputs = {} if prompt.deep is None else deep_inputs(prompt, place)
    made: dict[int, Tensor] = {}

    def read(layer: int, module: Any, args: Any, out: tuple[Tensor, Tensor]) -> None:
        made[layer] = see(out[1])

    blocks: list[Any] = list(decoder.blocks())
    config, hooks = decoder.config, []
    before = config._attn_implementation
    config._attn_implementation = "eager"  # the others tell none
    try:
        for layer in layers:
            hook = partial(read, layer)
            hooks.append(blocks[layer].self_attn.register_forward_hook(hook))
        with decoder.running([n <= max(layers) for n in range(len(blocks))]):
            decoder.body(
                inputs_embeds=prompt.embedded,
                attention_mask=additive(seen, prompt.embedded.dtype)[:, None],
                position_ids=prompt.positions[..., :width],
                use_cache=False,
                **inputs,
            )
    finally:
        for hook_ in hooks:
            hook_.remove()
        config._attn_implementation = before
    return [made[layer] for layer in layers]
