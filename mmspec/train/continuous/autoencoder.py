"""Recipe of the KL autoencoder, whose latents are the tokens of `continuous.target`."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor, nn

from ...models.mar.autoencoder import decode_latents, posterior
from ..autoencoder_loss import AutoencoderRecipe
from ..batches import scene_batch

RESOLUTION = 64  # px
GRID = RESOLUTION // 8  # tokens of a side
PIPELINE = "ContinuousImagePipeline"
LEVELS = 3  # two halvings of a picture whose 2×2 pixels are folded into channels: f = 8
EMBEDDED: dict[str, Any] = dict(
    in_channels=12,
    out_channels=12,
    down_block_types=("DownEncoderBlock2D",) * LEVELS,
    up_block_types=("UpDecoderBlock2D",) * LEVELS,
    block_out_channels=(32, 64, 128),
    layers_per_block=1,
    latent_channels=16,
    norm_num_groups=16,
    sample_size=RESOLUTION // 2,
)


class KlAutoencoderRecipe(AutoencoderRecipe):
    """Trains diffusers' `AutoencoderKL` on pictures of 64 px; arguments as of its base."""

    kind, network, sizes = PIPELINE, AutoencoderKL, EMBEDDED
    texts: ClassVar = dict(
        title="KL autoencoder of the shapes world",
        purpose=f"turns {RESOLUTION} px pictures into {GRID}×{GRID} tokens of "
        f"{EMBEDDED['latent_channels']} numbers and back",
        limits="knows only shapes-world pictures; the finest grain is smoothed away",
    )

    @staticmethod
    def draw_step(size: int, rng: np.random.Generator, step: int) -> tuple[list[str], Tensor]:
        return scene_batch(rng, size, RESOLUTION)

    def law(self, model: nn.Module, pixels: Tensor) -> Any:
        return posterior(model, pixels)

    def decode(self, model: nn.Module, latents: Tensor) -> Tensor:
        return decode_latents(model, latents)

    def held_out(self) -> Tensor:
        pixels = scene_batch(self.held_out_rng(), 96, RESOLUTION, "held_out")[1]
        return pixels.to(self.config.device)

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        law = self.law(model, self.held_out())
        deviation = float((law.mean.var() + law.var.mean()).sqrt())
        return {**super().evaluate(model), "latent_deviation": deviation}

    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, AutoencoderKL)
        scale = 1 / record["held_out"]["latent_deviation"]
        model.register_to_config(scaling_factor=round(scale, 4))
        super().export(model, record)
