"""Base of the autoencoders' recipes: reconstruction, with latents kept near a normal law.

Kingma and Welling 2014; Rombach et al. 2022, section 3.1, without its perceptual and adversarial
terms.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .base import BaseRecipe, hybrid_optimizers
from .card import check_pipeline
from .image.tokenizer import edge_loss, psnr
from .trainer import Loss, TrainConfig

ENDS = ("coder.conv_in", "coder.conv_out", "quant_conv")  # pixels, and latents


class AutoencoderRecipe(BaseRecipe):
    """Trains an autoencoder with a Gaussian of latents.

    Args:
        config, rate, init: see `BaseRecipe`.
        pipeline: folder that receives `vae`.
        divergence: weight of the latents' divergence from the normal law, in nats a number.
        squared: weight of the squared error; the other errors are absolute, and heed a faint grain
            everywhere more than what is lost of a small shape.

    Attributes:
        network, sizes: class of the model, and its arguments.
    """

    name = "vae"
    network: ClassVar[type[nn.Module]]
    sizes: ClassVar[dict[str, Any]]

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        rate: float = 2e-3,
        divergence: float = 1e-3,
        squared: float = 1.0,
    ) -> None:
        check_pipeline(pipeline, self.kind)
        super().__init__(config, pipeline, rate)
        self.model = self.network(**self.sizes)
        self.draw = partial(self.draw_step, config.batch_size)
        self.divergence, self.squared = divergence, squared
        self.start(init)

    @staticmethod
    @abstractmethod
    def draw_step(size: int, rng: np.random.Generator, step: int) -> tuple[list[str], Tensor]:
        """Captions, which are not used, and pixels of a step's batch."""

    @abstractmethod
    def law(self, model: nn.Module, pixels: Tensor) -> Any:
        """The model's Gaussian over latents of pixels in [-1, 1], as diffusers has it."""

    @abstractmethod
    def decode(self, model: nn.Module, latents: Tensor) -> Tensor:
        """Pixels, nominally in [-1, 1], of latents as `law` draws them."""

    @abstractmethod
    def held_out(self) -> Tensor:
        """Pixels of an evaluation, on the run's device."""

    def optimizers(self) -> Sequence[torch.optim.Optimizer]:
        """Muon for the kernels inside, AdamW for the two ends, norms and biases."""
        return hybrid_optimizers(self.model, self.rate, self.config.precision, _is_kernel, 0.98)

    def loss(self, batch: tuple[list[str], Tensor], rng: np.random.Generator, step: int) -> Loss:
        pixels = batch[1].to(self.config.device)
        law = self.law(self.model, pixels)
        noise = torch.from_numpy(rng.standard_normal(tuple(law.mean.shape))).to(pixels)
        out = self.decode(self.model, law.mean + law.std * noise)
        error = F.mse_loss(out, pixels)
        edges, nats = edge_loss(out, pixels), law.kl().sum() / law.mean.numel()
        loss = F.l1_loss(out, pixels) + self.squared * error + edges + self.divergence * nats
        return loss, {"psnr": psnr(error), "nats": float(nats.detach())}

    @torch.no_grad()
    def evaluate(self, model: nn.Module) -> dict[str, float]:
        pixels = self.held_out()
        law = self.law(model, pixels)
        out = self.decode(model, law.mean).clamp(-1, 1)
        return {
            "held_out_psnr": psnr(F.mse_loss(out, pixels)),
            "held_out_nats": float(law.kl().sum() / law.mean.numel()),
        }


def _is_kernel(name: str, weight: Tensor) -> bool:
    return name.endswith("weight") and weight.ndim > 1 and not any(end in name for end in ENDS)
