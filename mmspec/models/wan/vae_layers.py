"""Layers of diffusers' Wan autoencoder as a processor takes them fastest, to the last few bits.

PyTorch gives a convolution over time to oneDNN only where its input is large or has several clips,
and takes many times as long over a single small one by itself; a norm over channels, which lie far
apart in memory, is quicker as a sum of squares than by the library's own.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import torch
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d, WanRMS_norm
from torch import Tensor, nn

from ..transformers.patched_forward import patched

TINY = 1e-24  # what a norm's squares sum up to at least, as in `F.normalize`


def quick_layers(part: nn.Module) -> AbstractContextManager[None]:
    """The norms in `part` run the quick way meanwhile, if it is float32 and on a processor; its
    convolutions too, if nothing is learned.
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
    """The convolution of `x [B, C, T, H, W]`."""
    none = (0, 0, 0)  # `x` is padded already, on one side of time
    return torch.mkldnn_convolution(
        x, weight, bias, none, layer.stride, layer.dilation, layer.groups
    )
