"""Recipe of MAR's drafter: the target's Gaussians, distilled into a far cheaper model.

Both models see the same known tokens and the same noisy one; the drafter learns the target's noise
and variance in place of the true ones, whose chance no drafter can foresee. It learns them under
guidance as well, which widens what the two differ by.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5EncoderModel

from ...models.mar.schedule import DiffusionSchedule
from ...models.mar.transformer import MarTransformer
from ..trainer import Loss
from .diffusion_loss import NoisyTokens, divergence
from .target import (
    TRANSFORMER,
    MarRecipe,
    caption_buffer,
    halves,
    masked_conditions,
    random_masks,
    scene_tokens,
)

# of the target's size 30 %, and less of its head, whose calls follow one another
DRAFTER = {**TRANSFORMER, **halves(192, 2, 3), "diffloss_d": 1, "diffloss_w": 192}
GUIDANCE = 5.0  # at the last tokens; it grows to there as pictures are drawn
SAMPLER_STEPS = 100  # whose laws the figures of an evaluation compare


@dataclass
class Guess:
    """The noise that a model predicts; the first half of the rows has captions, the second none.

    Attributes:
        noise, log_variance: `[2 N, C]`.
        guidance: how far the noise is moved from the one without a caption.
    """

    noise: Tensor
    log_variance: Tensor
    guidance: float

    @property
    def guided(self) -> Tensor:
        """The noise under guidance, `[N, C]`."""
        told, untold = self.noise.float().chunk(2)
        return untold + self.guidance * (told - untold)


class MarDrafterRecipe(MarRecipe):
    """Distils `drafter` from the target of a pipeline folder; arguments as of `MarRecipe`.

    The folder holds `transformer` and `text_encoder` too.
    """

    name = "drafter"
    texts: ClassVar = dict(
        title="Drafter of the shapes world's masked autoregressive transformer",
        purpose="drafts denoising steps of continuous tokens for the embedded target",
        limits="distilled from one target: for others it is accepted less often; pictures of "
        "its own are poor",
    )

    def prepare(self, init: str | None) -> None:
        self.teacher: MarTransformer = self.component(MarTransformer, "transformer")
        self.encoder = self.component(T5EncoderModel, "text_encoder")
        self.model = MarTransformer(**DRAFTER)
        self.model.init_weights()
        self.start(init)

    def loss(self, batch: tuple[list[str], Tensor], rng: np.random.Generator, step: int) -> Loss:
        schedule = self.teacher.schedule
        _, taught, learnt = self._pair(self.model, *batch, rng, schedule)
        error = F.mse_loss(learnt.noise, taught.noise)
        guided = F.mse_loss(learnt.guided, taught.guided)
        # the variances alone: at equal means
        mean = torch.zeros_like(learnt.log_variance)
        nats = divergence(mean, taught.log_variance, mean, learnt.log_variance).mean()
        figures = {"error": error, "guided_error": guided, "nats": nats}
        return error + guided + nats, {name: float(x.detach()) for name, x in figures.items()}

    def _pair(
        self,
        student: MarTransformer,
        captions: list[str],
        pixels: Tensor,
        rng: np.random.Generator,
        schedule: DiffusionSchedule,
        first: int = 0,
    ) -> tuple[NoisyTokens, Guess, Guess]:
        """Noisy tokens `[N, C]`, and what the target and the drafter make of them.

        Both see every token with its caption and without, as guidance has it.
        """
        tokens = scene_tokens(self.vae, pixels.to(self.config.device), rng)
        known, masked = random_masks(rng, *tokens.shape[:2])
        guidance = 1 + (GUIDANCE - 1) * known.shape[1] / tokens.shape[1]
        keep = np.arange(2 * len(captions)) < len(captions)
        twice = tokens.repeat(2, 1, 1), known.repeat(2, 1), masked.repeat(2, 1)

        def conditions(model: MarTransformer) -> tuple[Tensor, Tensor]:
            buffer = caption_buffer(
                model, self.encoder, self.tokenizer, [*captions, *captions], keep
            )
            return masked_conditions(model, *twice, buffer)

        def guess(model: MarTransformer, noisy: NoisyTokens, z: Tensor) -> Guess:
            rows, steps = noisy.noisy.repeat(2, 1), noisy.timesteps.repeat(2)
            noise, between = model.head(rows, steps, z)
            return Guess(noise, schedule.log_variance(between, noisy.t.repeat(2)), guidance)

        with torch.no_grad():
            z, clean = conditions(self.teacher)
            noisy = NoisyTokens.draw(schedule, clean[: len(clean) // 2], rng, first)
            taught = guess(self.teacher, noisy, z)
        return noisy, taught, guess(student, noisy, conditions(student)[0])

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        rng, captions, pixels = self.held_out_scenes()
        schedule = self.teacher.schedule.respaced(SAMPLER_STEPS)
        # from 1 on: the last step has no chance in it
        noisy, taught, learnt = self._pair(model, captions, pixels, rng, schedule, first=1)
        means = [schedule.mean(noisy.noisy, guess.guided, noisy.t) for guess in (taught, learnt)]
        logs = [guess.log_variance.chunk(2)[0] for guess in (taught, learnt)]
        gap = ((means[0] - means[1]) / (0.5 * logs[0]).exp()).norm(dim=-1)
        return {
            "held_out_error": float(F.mse_loss(learnt.noise, taught.noise)),
            "held_out_guided_error": float(F.mse_loss(learnt.guided, taught.guided)),
            "held_out_deviation_ratio": float((0.5 * (logs[1] - logs[0])).exp().mean()),
            # of a maximal coupling, were the deviations the target's: 2Φ(-gap / 2)
            "held_out_acceptance": float(2 * torch.special.ndtr(-gap / 2).mean()),
        }
