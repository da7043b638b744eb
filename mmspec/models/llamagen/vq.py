"""LlamaGen's VQ image tokenizer, under the published tensor names (VQ-8, VQ-16: `vq_ds*_t2i.pt`).

Sun et al. 2024, "Autoregressive Model Beats Diffusion", section 2.1; the layout of
`tokenizer/tokenizer_image/vq_model.py` in the authors' repository. `patch_size > 1` folds pixels
into channels before the first convolution, which makes small tokenizers cheap on a CPU; published
checkpoints have `patch_size = 1`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn


class VQModel(ModelMixin, ConfigMixin):
    """Pixels in [-1, 1] to token grids and back.

    Args:
        codebook_size: number of codes V.
        codebook_embed_dim: width C of a code.
        codebook_l2_norm: codes and latents live on the unit sphere.
        codebook_show_usage: the published checkpoints carry the training counter `codebook_used`.
        ch, ch_mult, num_res_blocks, z_channels: sizes of the convolutional encoder and decoder.
        patch_size: side of the pixel patch folded into channels first.
    """

    @register_to_config
    def __init__(
        self,
        codebook_size: int = 16384,
        codebook_embed_dim: int = 8,
        codebook_l2_norm: bool = True,
        codebook_show_usage: bool = True,
        ch: int = 128,
        ch_mult: Sequence[int] = (1, 1, 2, 2, 4),
        num_res_blocks: int = 2,
        z_channels: int = 256,
        patch_size: int = 1,
    ) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.downsample_factor = patch_size * 2 ** (len(ch_mult) - 1)
        channels = 3 * patch_size**2
        widths, n = [ch * mult for mult in ch_mult], num_res_blocks
        self.encoder = LevelCoder(channels, z_channels, [ch, *widths], n, "downsample")
        around = [widths[-1], *reversed(widths)]
        self.decoder = LevelCoder(z_channels, channels, around, n + 1, "upsample")
        self.quantize = VectorQuantizer(
            codebook_size, codebook_embed_dim, codebook_l2_norm, codebook_show_usage
        )
        self.quant_conv = nn.Conv2d(z_channels, codebook_embed_dim, 1)
        self.post_quant_conv = nn.Conv2d(codebook_embed_dim, z_channels, 1)

    def latents(self, pixels: Tensor) -> Tensor:
        """Unquantized latents `[B, C, h, w]` of pixels `[B, 3, H, W]` in [-1, 1]."""
        x = F.pixel_unshuffle(pixels, self.patch_size) if self.patch_size > 1 else pixels
        z: Tensor = self.quant_conv(self.encoder(x))
        return F.normalize(z, dim=1) if self.quantize.l2_norm else z

    def encode(self, pixels: Tensor) -> Tensor:
        """Token ids `[B, h * w]` in raster order of pixels `[B, 3, H, W]` in [-1, 1]."""
        return self.quantize.nearest(self.latents(pixels)).flatten(1)

    def decode_latents(self, z: Tensor) -> Tensor:
        """Pixels `[B, 3, H, W]`, nominally in [-1, 1], of code vectors `[B, C, h, w]`."""
        x: Tensor = self.decoder(self.post_quant_conv(z))
        return F.pixel_shuffle(x, self.patch_size) if self.patch_size > 1 else x

    def decode(self, tokens: Tensor, height: int, width: int) -> Tensor:
        """Pixels of token ids `[B, height * width]`, a raster of `height × width` tokens."""
        codes = self.quantize.codebook()[tokens.unflatten(1, (height, width))]
        return self.decode_latents(codes.permute(0, 3, 1, 2).contiguous())


class VectorQuantizer(nn.Module):
    def __init__(self, size: int, dim: int, l2_norm: bool, show_usage: bool) -> None:
        super().__init__()
        self.l2_norm = l2_norm
        self.embedding = nn.Embedding(size, dim)
        if show_usage:
            self.register_buffer("codebook_used", torch.zeros(65536))

    def codebook(self) -> Tensor:
        """The codes `[V, C]` as they are compared and decoded."""
        weight = self.embedding.weight
        return F.normalize(weight, dim=-1) if self.l2_norm else weight

    def nearest(self, z: Tensor) -> Tensor:
        """Ids `[B, h, w]` of the codes nearest to latents `[B, C, h, w]` in L2 distance."""
        codes = self.codebook()
        flat = z.movedim(1, -1)
        distance = codes.square().sum(-1) - 2 * flat @ codes.T  # |z|² is the same for every code
        return distance.argmin(-1)


class Coder(nn.Module):
    """Convolutions from pixels to latents or back; `parts` hold the layers in between, in order."""

    parts: tuple[str, str]
    conv_in: nn.Conv2d
    norm_out: nn.GroupNorm
    conv_out: nn.Conv2d

    def inner_layers(self) -> Iterator[nn.Module]:
        """The layers between the first and the last convolution, in order."""
        for part in self.parts:
            yield from self.get_submodule(part).children()

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv_in(x)
        for layer in self.inner_layers():
            h = layer(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class LevelCoder(Coder):
    """Encoder or decoder: one level a resolution, and layers at the lowest one.

    Args:
        inward, out: channels.
        widths: in front of the first level, and behind each.
        n: residual blocks of a level.
        resample: "downsample" or "upsample", behind every level but the last.
    """

    def __init__(self, inward: int, out: int, widths: list[int], n: int, resample: str) -> None:
        super().__init__()
        down, last = resample == "downsample", len(widths) - 2
        self.parts = ("conv_blocks", "mid") if down else ("mid", "conv_blocks")
        self.conv_in = nn.Conv2d(inward, widths[0], 3, padding=1)
        self.conv_blocks = nn.ModuleList(
            Level(before, width, n, i == (last if down else 0), resample if i < last else None)
            for i, (before, width) in enumerate(pairwise(widths))
        )
        self.mid = _middle(widths[-1] if down else widths[0])
        self.norm_out = _norm(widths[-1])
        self.conv_out = nn.Conv2d(widths[-1], out, 3, padding=1)


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(32, channels, eps=1e-6)


class Level(nn.Module):
    """Layers of one resolution: residual blocks, attention behind each if asked, a resampler."""

    def __init__(
        self, in_channels: int, out_channels: int, n: int, attention: bool, resample: str | None
    ) -> None:
        super().__init__()
        widths = [in_channels] + [out_channels] * (n - 1)
        self.res = nn.ModuleList(ResnetBlock(width, out_channels) for width in widths)
        self.attn = nn.ModuleList(AttnBlock(out_channels) for _ in range(n if attention else 0))
        self.resample = resample  # the published name of the resampler: "downsample" or "upsample"
        if resample is not None:
            self.add_module(resample, Resample(out_channels, up=resample == "upsample"))

    def forward(self, h: Tensor) -> Tensor:
        for i, res in enumerate(self.res):
            h = res(h)
            if len(self.attn):
                h = self.attn[i](h)
        if self.resample is not None:
            h = self.get_submodule(self.resample)(h)
        return h


def _middle(width: int) -> nn.ModuleList:
    return nn.ModuleList([ResnetBlock(width, width), AttnBlock(width), ResnetBlock(width, width)])


class ResnetBlock(nn.Module):
    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1 = _norm(in_channels)
        self.conv1 = nn.Conv2d(in_channels, out_channels, 3, padding=1)
        self.norm2 = _norm(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        if in_channels != out_channels:
            self.nin_shortcut = nn.Conv2d(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv1(F.silu(self.norm1(x)))
        h = self.conv2(F.silu(self.norm2(h)))
        if hasattr(self, "nin_shortcut"):
            x = self.nin_shortcut(x)
        return x + h


class AttnBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = _norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        q, k, v = (f(h).flatten(2).transpose(1, 2) for f in (self.q, self.k, self.v))  # [B, hw, C]
        h = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        return x + self.proj_out(h)


class Resample(nn.Module):
    """Half or double the side, with a 3×3 convolution; down pads right and below only."""

    def __init__(self, channels: int, up: bool) -> None:
        super().__init__()
        self.up = up
        self.conv = nn.Conv2d(channels, channels, 3, stride=1 if up else 2, padding=int(up))

    def forward(self, x: Tensor) -> Tensor:
        x = F.interpolate(x, scale_factor=2.0) if self.up else F.pad(x, (0, 1, 0, 1))
        return self.conv(x)
