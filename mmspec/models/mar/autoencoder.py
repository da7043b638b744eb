"""Pictures to continuous tokens and back, by diffusers' `AutoencoderKL`.

An autoencoder of more than 3 channels reads pixels folded into channels, which makes a small one
cheap on a CPU: 12 channels are patches of 2×2 pixels. Published ones have 3.
"""

from __future__ import annotations

import math
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def patch_size(vae: Any) -> int:
    """Side of the pixel patch that is folded into channels."""
    return math.isqrt(vae.config.in_channels // 3)


def downsample_factor(vae: Any) -> int:
    """Side in pixels of a token."""
    return int(patch_size(vae) * 2 ** (len(vae.config.block_out_channels) - 1))


def posterior(vae: Any, pixels: Tensor) -> Any:
    """The autoencoder's Gaussian over latents of `pixels [B, 3, H, W]` in [-1, 1]."""
    return vae.encode(F.pixel_unshuffle(pixels, patch_size(vae))).latent_dist


def decode_latents(vae: Any, latents: Tensor) -> Tensor:
    """Pixels `[B, 3, H, W]`, nominally in [-1, 1], of latents `[B, C, h, w]`."""
    return F.pixel_shuffle(vae.decode(latents).sample, patch_size(vae))


def tokens_of(vae: Any, latents: Tensor) -> Tensor:
    """Latents `[B, C, h, w]` as tokens `[B, h · w, C]` in raster order, of about unit deviation."""
    return latents.flatten(2).mT * vae.config.scaling_factor


def decode_tokens(vae: Any, tokens: Tensor) -> Tensor:
    """Pixels `[B, 3, H, W]`, nominally in [-1, 1], of tokens `[B, grid², C]` in raster order."""
    side = math.isqrt(tokens.shape[1])
    latents = (tokens / vae.config.scaling_factor).mT.unflatten(2, (side, side))
    return decode_latents(vae, latents.contiguous())
