"""Clips drawn block by block, as in use: what a model that trains is judged by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from ...models.wan.sampler import Draw, FewStepSampler, denoise_block
from ...models.wan.transformer import WanTransformer
from ...models.wan.vae import decode_block, to_bytes

Maker = Callable[[Tensor, Draw, Tensor | None], Tensor]  # of noise, `draw` and the block before


def block_maker(
    model: WanTransformer, told: Tensor, untold: Tensor, size: tuple[int, int], blocks: int
) -> Maker:
    """Make a function that draws the next block of clips, of noise, `draw` and the block before it.

    Args:
        told, untold: features of the captions and of none, `[R, T, D]` each.
        size: height and width of the latents.
        blocks: at most so many.
    """
    sampler = FewStepSampler.usual(model)
    text = torch.cat([told, untold]) if sampler.guided else told
    cache = model.start(text, *size, blocks)
    return lambda noise, draw, last: denoise_block(model, cache, noise, sampler, draw, last)


@torch.no_grad()
def rollout(
    first: Maker,
    further: Maker,
    vae: AutoencoderKLWan,
    shape: tuple[int, ...],
    blocks: int,
    seed: int,
) -> np.ndarray[Any, Any]:
    """Clips `[B, T, H, W, 3]` in 8 bits, every block drawn behind those drawn before it.

    Args:
        first, further: make a clip's first block and the others.
        shape: of the latents of a block, `[B, F, C, h, w]`.
        blocks: of a clip.
    """
    generator = torch.Generator().manual_seed(seed)

    def draw(_: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(vae.device)

    pieces, state, block = [], None, None
    for number in range(blocks):
        block = (further if number else first)(draw(0), draw, block)
        pixels, state = decode_block(vae, block, state)
        pieces.append(pixels)
    return to_bytes(torch.cat(pieces, 1)).movedim(2, -1).cpu().numpy()
