"""Recipe of the KL autoencoder: reconstruction, with latents kept near a normal law.

Kingma and Welling 2014; Rombach et al. 2022, section 3.1, without its perceptual and adversarial
terms. The latents are the tokens of `mar_target`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from diffusers import AutoencoderKL
from torch import Tensor, nn

from ..models.kl import decode_latents, posterior
from .card import check_pipeline, ship, start_from, write_card
from .data import draw_scenes, scene_batch
from .image_tokenizer import psnr
from .trainer import TrainConfig

RESOLUTION = 64  # px
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


class KlAutoencoderRecipe:
    """Trains diffusers' `AutoencoderKL` on shapes-world pictures of 64 pixels.

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
        self.draw = partial(draw_scenes, config.batch_size, RESOLUTION)
        self.model = AutoencoderKL(**EMBEDDED)
        self.origin = init and pipeline / init
        if self.origin:
            start_from(self.model, self.origin)

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        weights = self.model.parameters()
        return [torch.optim.AdamW(weights, self.rate, betas=(0.9, 0.98), weight_decay=1e-4)]

    def loss(
        self, batch: tuple[list[str], Tensor], rng: np.random.Generator, step: int
    ) -> tuple[Tensor, dict[str, float]]:
        pixels = batch[1].to(self.config.device)
        law = posterior(self.model, pixels)
        noise = torch.from_numpy(rng.standard_normal(tuple(law.mean.shape))).to(pixels)
        out = decode_latents(self.model, law.mean + law.std * noise)
        error = F.mse_loss(out, pixels)
        edges = F.l1_loss(out.diff(dim=-1), pixels.diff(dim=-1))
        edges = edges + F.l1_loss(out.diff(dim=-2), pixels.diff(dim=-2))
        nats = law.kl().sum() / law.mean.numel()
        loss = F.l1_loss(out, pixels) + error + edges + self.divergence * nats
        return loss, {"psnr": psnr(error), "nats": float(nats.detach())}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        pixels = self._held_out()
        law = posterior(model, pixels)
        out = decode_latents(model, law.mean).clamp(-1, 1)
        return {
            "held_out_psnr": psnr(F.mse_loss(out, pixels)),
            "held_out_nats": float(law.kl().sum() / law.mean.numel()),
            "latent_deviation": deviation(law),
        }

    @torch.no_grad()
    def export(self, model: nn.Module, record: dict[str, Any]) -> None:
        assert isinstance(model, AutoencoderKL)
        scale = 1 / deviation(posterior(model, self._held_out()))
        model.register_to_config(scaling_factor=round(scale, 4))
        tokens = RESOLUTION // 8
        write_card(
            ship(self.pipeline, "vae", model.half(), PIPELINE),
            title="KL autoencoder of the shapes world",
            purpose=f"turns {RESOLUTION} px pictures into {tokens}×{tokens} tokens of "
            f"{EMBEDDED['latent_channels']} numbers and back",
            limits="knows only shapes-world pictures; the finest grain is smoothed away",
            record=record,
        )

    def _held_out(self) -> Tensor:
        rng = np.random.default_rng([self.config.seed, 10**6])
        return scene_batch(rng, 96, RESOLUTION, "held_out")[1].to(self.config.device)


def deviation(law: Any) -> float:
    """Of the latents that a posterior of many pictures gives."""
    spread = law.mean.var() + law.var.mean()
    return float(spread.sqrt())
