"""Recipe of the causal video autoencoder, whose latents are what `video.model` learns to draw.

Wan team 2025, section 3 (Wan-VAE).
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from ...models.wan.vae import decode_block, posterior_block
from ...worlds.video_world.vocabulary import TIMING
from ..autoencoder_loss import AutoencoderRecipe
from .clip_latents import clip_batch

RESOLUTION = 64  # px
FACTOR = 8  # px of a latent along a side: patches of 2, and two halvings
SIDE = RESOLUTION // FACTOR  # of the latents
PIPELINE = "VideoPipeline"
# frames of a training clip, in turn: many pictures and short clips teach what shapes look like, a
# long one, now and then, how the layers go on once they remember as much as ever
PICTURE, BRIEF, SHORT, LONG = (1 + frames * TIMING.factor for frames in (0, 1, 5, 24))
TURNS = (PICTURE, SHORT, BRIEF) * 3 + (PICTURE, LONG)
MEASURED = 160  # clips by which latents are brought to unit deviation
LATE = 100  # frames that a training clip may begin after
CHANNELS = 16
# decoding takes as long with a drafted block as without, so the decoder is small. Patches are small
# too: of 4 px, on a quarter of the latents, shapes stayed blurred at three times the weights
EMBEDDED: dict[str, Any] = dict(
    base_dim=24,
    decoder_base_dim=16,
    z_dim=CHANNELS,
    dim_mult=[1, 2, 2],
    num_res_blocks=1,
    temperal_downsample=[True, True],  # the library's spelling: 4 frames a latent frame
    latents_mean=[0.0] * CHANNELS,
    latents_std=[1.0] * CHANNELS,
    is_residual=True,
    in_channels=12,
    out_channels=12,
    patch_size=2,  # folded into channels
    scale_factor_temporal=TIMING.factor,
    scale_factor_spatial=FACTOR,
)


class VideoAutoencoderRecipe(AutoencoderRecipe):
    """Trains diffusers' `AutoencoderKLWan` on clips of 64 px; arguments as of its base."""

    kind, network, sizes = PIPELINE, AutoencoderKLWan, EMBEDDED
    texts: ClassVar = dict(
        title="Causal video autoencoder of the clip world",
        purpose=f"turns clips of {RESOLUTION} px into {SIDE}×{SIDE} latents of {CHANNELS} "
        f"numbers, {TIMING.factor} frames each but for the first, and back",
        limits="knows only clips of the shapes world; the finest grain is smoothed away",
        data="clips of moving shapes, drawn afresh for every batch",
    )

    @staticmethod
    def draw_step(size: int, rng: np.random.Generator, step: int) -> tuple[list[str], Tensor]:
        """`size` short clips, or about as many frames of others."""
        frames = TURNS[step % len(TURNS)]
        return clip_batch(rng, max(1, size * SHORT // frames), frames, RESOLUTION, late=LATE)

    def law(self, model: nn.Module, pixels: Tensor) -> Any:
        law, _ = posterior_block(model, pixels)
        return law

    def decode(self, model: nn.Module, latents: Tensor) -> Tensor:
        frames, _ = decode_block(model, latents.transpose(1, 2), clamp=False)
        return frames

    def held_out(self) -> Tensor:
        frames = clip_batch(self.held_out_rng(), 5, LONG, RESOLUTION, "held_out", LATE)[1]
        return frames.to(self.config.device)

    @torch.no_grad()
    def moments(self, model: nn.Module) -> tuple[Tensor, Tensor]:
        """Mean and deviation `[C]` of latents as the Gaussians draw them, of many clips.

        Not of their means: a channel that says next to nothing stays as small as what it says.
        """
        rng, drawn = np.random.default_rng([self.config.seed, 10**6 + 1]), []
        for _ in range(MEASURED // 8):
            frames = clip_batch(rng, 8, SHORT, RESOLUTION, late=LATE)[1]
            law = self.law(model, frames.to(self.config.device))
            noise = torch.from_numpy(rng.standard_normal(tuple(law.mean.shape))).to(law.mean)
            drawn.append(law.mean + law.std * noise)
        latents = torch.cat(drawn)
        return latents.mean((0, 2, 3, 4)), latents.std((0, 2, 3, 4))

    @torch.no_grad()
    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, AutoencoderKLWan)
        mean, deviation = self.moments(model)
        model.register_to_config(
            latents_mean=[round(float(m), 4) for m in mean],
            latents_std=[round(float(s), 4) for s in deviation],
        )
        super().export(model, record)
