"""Video to latents and back, block by block, by diffusers' `AutoencoderKLWan`.

Its convolutions are causal in time. What they remember of the frames so far is a state that is
passed in and out, and none is left in the model: to take a block back, go on from the state before
it. A state is a dictionary of contiguous tensors, empty at the start of a clip, and is never
changed. Kernels round by memory layout: one that was read from a file gives the same frames to the
last bit.

The clip's first latent frame is 1 picture frame, each later one as many as time is downsampled by.
Latents are `[B, F, C, h, w]` of about unit deviation, frames `[B, T, 3, H, W]` in [-1, 1].
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import (
    WanCausalConv3d,
    WanRMS_norm,
    patchify,
    unpatchify,
)
from diffusers.models.autoencoders.vae import DiagonalGaussianDistribution
from torch import Tensor, nn

from ...errors import InputError
from ..repacked import patched

State = dict[str, Tensor]
BEGUN = "Rep"  # diffusers' mark of a layer that has only seen the clip's first frame
TINY = 1e-24  # what a norm's squares sum up to at least, as in `F.normalize`


def temporal_factor(vae: Any) -> int:
    """Picture frames of a latent frame, but for the first."""
    return int(2 ** sum(vae.config.temperal_downsample))


def spatial_factor(vae: Any) -> int:
    """Pixels of a latent along a side."""
    return int(2 ** len(vae.config.temperal_downsample) * (vae.config.patch_size or 1))


def decode_block(
    vae: Any, latents: Tensor, state: State | None = None, clamp: bool = True
) -> tuple[Tensor, State]:
    """The frames `[B, T, 3, H, W]` of the next latents `[B, F, C, h, w]`, and the state behind.

    Args:
        state: behind the latents before them; None or empty: they begin the clip.
        clamp: to [-1, 1]; training wants gradients outside of it too.
    """
    memory, start = _memory(state, vae.decoder), 0 if state else 1
    mean, deviation = _moments(vae, latents)
    with quick_layers(vae):
        z = vae.post_quant_conv((latents * deviation + mean).transpose(1, 2))
        pieces = [
            vae.decoder(piece, feat_cache=memory, feat_idx=[0], first_chunk=first)
            for piece, first in ((z[:, :, :start], True), (z[:, :, start:], False))
            if piece.shape[2]
        ]
    pixels = torch.cat(pieces, dim=2)
    if vae.config.patch_size is not None:
        pixels = unpatchify(pixels, vae.config.patch_size)
    if clamp:
        pixels = pixels.clamp(-1, 1)
    return pixels.transpose(1, 2), _state(memory)


def to_bytes(frames: Tensor) -> Tensor:
    """Frames in [-1, 1] as uint8 of the same shape."""
    return ((frames.float() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def encode_block(vae: Any, frames: Tensor, state: State | None = None) -> tuple[Tensor, State]:
    """The latents `[B, F, C, h, w]` of the next frames `[B, T, 3, H, W]`, and the state behind.

    Latents are the means of the autoencoder's Gaussian.

    Args:
        state: behind the frames before them; None or empty: they begin the clip.

    Raises:
        InputError: the frames are not those of whole latent frames.
    """
    law, state = posterior_block(vae, frames, state)
    latents = law.mean.transpose(1, 2)
    mean, deviation = _moments(vae, latents)
    return (latents - mean) / deviation, state


def posterior_block(
    vae: Any, frames: Tensor, state: State | None = None
) -> tuple[DiagonalGaussianDistribution, State]:
    """The autoencoder's own Gaussian over latents `[B, C, F, h, w]`, else as `encode_block`."""
    factor, start = temporal_factor(vae), 0 if state else 1
    if frames.shape[1] < 1 or (frames.shape[1] - start) % factor:
        wanted = f"{factor}n + 1 frames begin a clip" if start else f"{factor}n frames go on"
        raise InputError(f"{wanted}, not {frames.shape[1]}")
    memory, pixels = _memory(state, vae.encoder), frames.transpose(1, 2)
    if vae.config.patch_size is not None:
        pixels = patchify(pixels, vae.config.patch_size)
    with quick_layers(vae):
        pieces = [
            vae.encoder(piece, feat_cache=memory, feat_idx=[0])
            for piece in (pixels[:, :, :start], pixels[:, :, start:])
            if piece.shape[2]
        ]
        moments = vae.quant_conv(torch.cat(pieces, dim=2))
    return DiagonalGaussianDistribution(moments), _state(memory)


def _moments(vae: Any, latents: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of the autoencoder's own latents, `[C, 1, 1]`."""
    moments = vae.config.latents_mean, vae.config.latents_std
    mean, deviation = (latents.new_tensor(each)[:, None, None] for each in moments)
    return mean, deviation


def _memory(state: State | None, half: Any) -> list[Tensor | str | None]:
    """State of the layers of an encoder or decoder, which they replace: an entry for each."""
    layers = sum(isinstance(module, WanCausalConv3d) for module in half.modules())
    found = (None if not state else state.get(str(n)) for n in range(layers))
    return [BEGUN if kept is not None and not kept.numel() else kept for kept in found]


def _state(memory: list[Tensor | str | None]) -> State:
    """The memory as contiguous tensors; an empty one stands for the mark."""
    kept = {str(n): entry for n, entry in enumerate(memory) if entry is not None}
    return {
        n: entry.contiguous() if isinstance(entry, Tensor) else torch.empty(0)
        for n, entry in kept.items()
    }


def quick_layers(part: nn.Module) -> AbstractContextManager[None]:
    """The norms in `part` run the quick way meanwhile, if it is float32 and on a processor; its
    convolutions too, if nothing is learned. Outputs are the same but for the last few bits.

    PyTorch gives a convolution over time to oneDNN only where its input is large or has several
    clips, and takes many times as long over a single small one by itself; a norm over channels,
    which lie far apart in memory, is quicker as a sum of squares than by the library's own.
    """
    quick: dict[type[nn.Module], tuple[str, Callable[..., Tensor]]] = {}
    weight = next(part.parameters())
    if weight.device.type == "cpu" and weight.dtype == torch.float32:
        quick[WanRMS_norm] = "forward", _normalized
        alone = not (torch.is_grad_enabled() or torch.is_autocast_enabled("cpu"))
        if alone and torch.backends.mkldnn.is_available():
            quick[WanCausalConv3d] = "_conv_forward", _convolved
    found = [(layer, *quick[type(layer)]) for layer in part.modules() if type(layer) in quick]
    return patched((layer, name, partial(way, layer)) for layer, name, way in found)


def _normalized(layer: WanRMS_norm, x: Tensor) -> Tensor:
    """`x [B, C, ...]` of unit mean square over channels, or over the last axis."""
    axis = 1 if layer.channel_first else -1
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = wide.square().sum(axis, keepdim=True).clamp_min(TINY).rsqrt()
    return (wide * scale).to(x.dtype) * (layer.scale * layer.gamma) + layer.bias


def _convolved(layer: nn.Conv3d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    none = (0, 0, 0)  # `x` is padded already, on one side of time
    return torch.mkldnn_convolution(
        x, weight, bias, none, layer.stride, layer.dilation, layer.groups
    )
