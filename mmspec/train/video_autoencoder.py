"""Recipe of the causal video autoencoder: reconstruction, with latents kept near a normal law.

Wan team 2025, section 3 (Wan-VAE), without its perceptual and adversarial terms. The latents are
what `video_model` learns to draw.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from torch import Tensor, nn

from ..models.wan_vae import decode_block, encode_block, posterior_block
from ..worlds.clips.timing import TIMING
from .card import check_pipeline, ship, start_from, write_card
from .clips import clip_batch, draw_clips
from .image_tokenizer import psnr
from .trainer import TrainConfig

RESOLUTION = 64  # px
SIDE = RESOLUTION // 8  # of the latents
PIPELINE = "VideoPipeline"
FRAMES = 1 + 4 * TIMING.factor  # of a training clip
LATE = 100  # frames that a training clip may begin after
CHANNELS = 16
EMBEDDED: dict[str, Any] = dict(
    base_dim=16,
    decoder_base_dim=24,
    z_dim=CHANNELS,
    dim_mult=[1, 2, 4],
    num_res_blocks=1,
    temperal_downsample=[True, True],  # the library's spelling: 4 frames a latent frame
    latents_mean=[0.0] * CHANNELS,
    latents_std=[1.0] * CHANNELS,
    in_channels=12,
    out_channels=12,
    patch_size=2,  # folded into channels, and two halvings: 8 px
    scale_factor_temporal=TIMING.factor,
    scale_factor_spatial=8,
)


class VideoAutoencoderRecipe:
    """Trains diffusers' `AutoencoderKLWan` on clips of 64 pixels.

    Args:
        config: length, batch and device of the run.
        pipeline: folder that receives `vae`.
        init: component whose weights to start from; None: from nothing.
        rate: learning rate.
        divergence: weight of the latents' divergence from the normal law, in nats a number.
    """

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        rate: float = 1e-3,
        divergence: float = 1e-3,
    ) -> None:
        check_pipeline(pipeline, PIPELINE)
        self.config, self.pipeline = config, pipeline
        self.rate, self.divergence = rate, divergence
        self.draw = partial(draw_clips, config.batch_size, FRAMES, RESOLUTION, LATE)
        self.model = AutoencoderKLWan(**EMBEDDED)
        self.origin = init and pipeline / init
        if self.origin:
            start_from(self.model, self.origin)

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        weights = self.model.parameters()
        return [torch.optim.AdamW(weights, self.rate, betas=(0.9, 0.98), weight_decay=1e-4)]

    def loss(
        self, batch: tuple[list[str], Tensor], rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        frames = batch[1].to(self.config.device)
        law, _ = posterior_block(self.model, frames)
        noise = torch.from_numpy(rng.standard_normal(tuple(law.mean.shape))).to(frames)
        latents = (law.mean + law.std * noise).transpose(1, 2)
        out, _ = decode_block(self.model, latents, clamp=False)
        error = F.mse_loss(out, frames)
        edges = F.l1_loss(out.diff(dim=-1), frames.diff(dim=-1))
        edges = edges + F.l1_loss(out.diff(dim=-2), frames.diff(dim=-2))
        nats = law.kl().sum() / law.mean.numel()
        loss = F.l1_loss(out, frames) + error + edges + self.divergence * nats
        return loss, {"psnr": psnr(error), "nats": float(nats.detach())}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        frames = self._held_out()
        law, _ = posterior_block(model, frames)
        out, _ = decode_block(model, law.mean.transpose(1, 2))
        return {
            "held_out_psnr": psnr(F.mse_loss(out, frames)),
            "held_out_nats": float(law.kl().sum() / law.mean.numel()),
        }

    @torch.no_grad()
    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, AutoencoderKLWan)
        latents, _ = encode_block(model, self._held_out())
        mean, deviation = latents.mean((0, 1, 3, 4)), latents.std((0, 1, 3, 4))
        model.register_to_config(
            latents_mean=[round(float(m), 4) for m in mean],
            latents_std=[round(float(s), 4) for s in deviation],
        )
        write_card(
            ship(self.pipeline, "vae", model.half(), PIPELINE),
            title="Causal video autoencoder of the clip world",
            purpose=f"turns clips of {RESOLUTION} px into {SIDE}×{SIDE} latents of {CHANNELS} "
            f"numbers, {TIMING.factor} frames each but for the first, and back",
            limits="knows only clips of the shapes world; the finest grain is smoothed away",
            record=record,
            data="clips of moving shapes, drawn afresh for every batch",
        )

    def _held_out(self) -> Tensor:
        rng = np.random.default_rng([self.config.seed, 10**6])
        frames = clip_batch(rng, 20, FRAMES, RESOLUTION, "held_out", LATE)[1]
        return frames.to(self.config.device)
