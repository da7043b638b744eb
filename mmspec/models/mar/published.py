"""The published MAR checkpoints and their KL-16 autoencoder, as the authors released them.

`checkpoint-last.pth` of MAR-B, -L and -H: pickled, the averaged weights under "model_ema".
`kl16.ckpt`: the layout of latent diffusion's autoencoders (Rombach et al. 2022), here under the
names of diffusers' `AutoencoderKL`. Both are read with `weights_only=True` and loaded strictly.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from torch import Tensor

from ...errors import InputError
from ..loading import cast, load_strict
from ..weights import WRAPPED, read_tensors
from .transformer import MarTransformer

HEADS = {768: 12, 1024: 16, 1280: 16}  # of the released models, by width
SCALE = 0.2325  # brings KL-16's latents to unit deviation
# tensor names of latent diffusion's autoencoders as diffusers has them, in this order
_RENAMED = (
    (r"\.mid\.block_1\.", ".mid_block.resnets.0."),
    (r"\.mid\.block_2\.", ".mid_block.resnets.1."),
    (r"\.mid\.attn_1\.", ".mid_block.attentions.0."),
    (r"\.(down|up)\.(\d+)\.(down|up)sample\.", r".\1_blocks.\2.\3samplers.0."),
    (r"\.(down|up)\.(\d+)\.block\.", r".\1_blocks.\2.resnets."),
    (r"\.(down|up)\.(\d+)\.attn\.", r".\1_blocks.\2.attentions."),
    (r"(\.resnets\.\d+)\.nin_shortcut\.", r"\1.conv_shortcut."),
    (r"(\.attentions\.\d+)\.norm\.", r"\1.group_norm."),
    (r"(\.attentions\.\d+)\.(q|k|v)\.", r"\1.to_\2."),
    (r"(\.attentions\.\d+)\.proj_out\.", r"\1.to_out.0."),
    (r"^(encoder|decoder)\.norm_out\.", r"\1.conv_norm_out."),
)


def load_mar(path: str | Path, dtype: torch.dtype = torch.float32) -> MarTransformer:
    """A released MAR model, averaged weights; the sizes are read from the tensors' shapes.

    Raises:
        InputError: unreadable, of a width that was not released, or a tensor does not fit.
    """
    weights = read_tensors(path, ("model_ema", "model"))
    config = _mar_config(weights, path)
    with torch.device("meta"):
        model: MarTransformer = MarTransformer(**config)
    return cast(load_strict(model, weights, path), dtype)


def _mar_config(weights: dict[str, Tensor], path: str | Path) -> dict[str, Any]:
    try:
        width, channels = weights["z_proj.weight"].shape
        inner = len(weights["decoder_embed.weight"])
        classes = len(weights["class_emb.weight"])
        head = len(weights["diffloss.net.input_proj.weight"])
        length = weights["diffusion_pos_embed_learned"].shape[1]
        positions = weights["encoder_pos_embed_learned"].shape[1]
    except KeyError as error:
        raise InputError(f"{path} is no MAR checkpoint: missing tensor {error.args[0]}") from error
    except (IndexError, TypeError, ValueError) as error:
        raise InputError(f"{path}: a tensor of MAR's has another number of dimensions") from error
    if width not in HEADS or inner not in HEADS or round(length**0.5) ** 2 != length:
        raise InputError(f"{path}: no released MAR is {width} wide with {length} tokens")

    def depth(blocks: str) -> int:
        return len(_numbers(weights, rf"{blocks}\.(\d+)\."))

    return {
        "token_dim": channels,
        "grid": round(length**0.5),
        "buffer_size": positions - length,
        "encoder_embed_dim": width,
        "encoder_depth": depth("encoder_blocks"),
        "encoder_num_heads": HEADS[width],
        "decoder_embed_dim": inner,
        "decoder_depth": depth("decoder_blocks"),
        "decoder_num_heads": HEADS[inner],
        "diffloss_d": depth(r"diffloss\.net\.res_blocks"),
        "diffloss_w": head,
        "class_num": classes,
    }


def load_kl(
    path: str | Path, scale: float = SCALE, dtype: torch.dtype = torch.float32
) -> AutoencoderKL:
    """An autoencoder in latent diffusion's layout, as diffusers' `AutoencoderKL`.

    Channels, levels and where attention stands are read from the tensors. Beside the autoencoder
    such a file may hold the discriminator of its training ("loss."), which is left out.

    Args:
        scale: factor that brings its latents to unit deviation.

    Raises:
        InputError: unreadable, or a tensor does not fit.
    """
    config, weights = as_autoencoder_kl(read_tensors(path, WRAPPED), path)
    with torch.device("meta"):
        model = AutoencoderKL(**config, scaling_factor=scale)
    return cast(load_strict(model, weights, path), dtype)


def as_autoencoder_kl(
    weights: dict[str, Tensor], path: str | Path
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The arguments of `AutoencoderKL` and its tensors, of a file in latent diffusion's layout."""
    weights = {name: value for name, value in weights.items() if not name.startswith("loss.")}
    config = _kl_config(weights, path)
    levels = len(config["block_out_channels"])
    renamed = {_kl_name(name, levels): value for name, value in weights.items()}
    for name, value in renamed.items():
        if ".attentions." in name and value.ndim == 4:  # there a 1×1 convolution, here linear
            renamed[name] = value.flatten(1)
    return config, renamed


def _kl_config(weights: dict[str, Tensor], path: str | Path) -> dict[str, Any]:
    downs = _numbers(weights, r"encoder\.down\.(\d+)\.block")
    try:
        channels = [len(weights[f"encoder.down.{i}.block.0.conv1.bias"]) for i in downs]
        latent = weights["post_quant_conv.weight"].shape[1]
    except (IndexError, KeyError) as error:
        raise InputError(f"{path} is no KL autoencoder in latent diffusion's layout") from error
    if not downs:
        raise InputError(f"{path} is no KL autoencoder in latent diffusion's layout")

    def kinds(half: str, side: str, plain: str, attentive: str) -> tuple[str, ...]:
        with_attention = _numbers(weights, rf"{half}\.{side}\.(\d+)\.attn\.")
        return tuple(attentive if i in with_attention else plain for i in downs)

    up = kinds("decoder", "up", "UpDecoderBlock2D", "AttnUpDecoderBlock2D")
    return {
        "block_out_channels": tuple(channels),
        "layers_per_block": len(_numbers(weights, r"encoder\.down\.0\.block\.(\d+)\.")),
        "latent_channels": latent,
        "down_block_types": kinds(
            "encoder", "down", "DownEncoderBlock2D", "AttnDownEncoderBlock2D"
        ),
        "up_block_types": tuple(reversed(up)),  # counted from the smallest level
        "sample_size": 16 * 2 ** (len(channels) - 1),
    }


def _numbers(weights: dict[str, Tensor], pattern: str) -> list[int]:
    found = (re.match(pattern, name) for name in weights)
    return sorted({int(match[1]) for match in found if match})


def _kl_name(name: str, levels: int) -> str:
    """A tensor's name in diffusers' layout; one that has no place there is left as it is."""
    # the decoder's levels are counted from the other end
    name = re.sub(r"\.up\.(\d+)\.", lambda found: f".up.{levels - 1 - int(found[1])}.", name)
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name
