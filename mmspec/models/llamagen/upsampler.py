"""Upsamplers from a small picture's tokens to those of one twice as large (MuLo-SD, 3.1)."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.modeling_utils import ModelMixin
from torch import Tensor, nn

from ..token_grid import TokenGrid
from .vq import ResnetBlock, VQModel

SCALE = 2
# codes [B, h · w] of a small picture, its grid: codes of the large one, [B, SCALE² · h · w]
Upsampler = Callable[[Tensor, TokenGrid], Tensor]


def nearest(codes: Tensor, grid: TokenGrid) -> Tensor:
    """Repeat every code four times."""
    cells = codes.unflatten(1, (grid.rows, grid.columns))
    return cells.repeat_interleave(SCALE, 1).repeat_interleave(SCALE, 2).flatten(1)


class PixelUpsampler:
    """Upsampler in pixels: it decodes, enlarges bicubically and encodes again."""

    def __init__(self, vq_model: VQModel) -> None:
        self.vq_model = vq_model

    def __call__(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        pixels = self.vq_model.decode(codes, grid.rows, grid.columns)
        large = F.interpolate(pixels, scale_factor=SCALE, mode="bicubic", align_corners=False)
        return self.vq_model.encode(large.clamp(-1, 1))


class LatentUpsampler(ModelMixin, ConfigMixin):
    """Learned upsampler in the codebook's space: the likeliest code of each cell of the grid.

    Args:
        codebook_size: codes V.
        codebook_embed_dim: width C of a code.
        width: channels inside.
        depth: residual blocks at either resolution.
    """

    @register_to_config
    def __init__(
        self,
        codebook_size: int = 1024,
        codebook_embed_dim: int = 8,
        width: int = 96,
        depth: int = 3,
    ) -> None:
        super().__init__()
        self.conv_in = nn.Conv2d(codebook_embed_dim, width, 3, padding=1)
        self.small = nn.ModuleList(ResnetBlock(width, width) for _ in range(depth))
        self.grow = nn.Conv2d(width, SCALE**2 * width, 3, padding=1)
        self.large = nn.ModuleList(ResnetBlock(width, width) for _ in range(depth))
        self.norm_out = nn.GroupNorm(32, width, eps=1e-6)
        self.conv_out = nn.Conv2d(width, codebook_size, 1)

    def forward(self, latents: Tensor) -> Tensor:
        """Logits `[B, V, 2 h, 2 w]` from the small picture's code vectors `[B, C, h, w]`."""
        h = self.conv_in(latents)
        for block in self.small:
            h = block(h)
        h = F.pixel_shuffle(self.grow(h), SCALE)
        for block in self.large:
            h = block(h)
        return self.conv_out(F.silu(self.norm_out(h)))


class LatentUpsampling:
    """A `LatentUpsampler` at work; `codebook [V, C]` holds the codes as they are compared."""

    def __init__(self, network: LatentUpsampler, codebook: Tensor) -> None:
        self.network, self.codebook = network, codebook

    def __call__(self, codes: Tensor, grid: TokenGrid) -> Tensor:
        latents = grid.latents(codes, self.codebook)
        return self.network(latents.to(self.network.conv_in.weight)).argmax(1).flatten(1)
