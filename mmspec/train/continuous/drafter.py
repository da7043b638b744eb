"""Recipe of MAR's drafter: the target's Gaussians, distilled into a far cheaper model.

Both models see the same known tokens and the same noisy one; the drafter learns the target's noise
and variance in place of the true ones, whose chance no drafter can foresee. It learns them under
guidance as well, which widens what the two differ by.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import T5EncoderModel

from ...models.mar.schedule import DiffusionSchedule
from ...models.mar.transformer import MarTransformer
from ...registry import check_name
from ..trainer import Loss, TrainConfig
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


def variation(gap: Tensor) -> Tensor:
    """`TV = 2 Φ(d/2) − 1` of normal laws of one deviation whose means are d deviations apart."""
    return torch.erf(gap / 8**0.5)


def log_acceptance(gap: Tensor) -> Tensor:
    """`−log(1 − TV) = −log 2 Φ(−d/2)`: the gradient does not vanish where laws hardly meet."""
    return -torch.special.log_ndtr(-gap / 2) - math.log(2)


def kl(gap: Tensor) -> Tensor:
    """Kullback–Leibler divergence of such laws, `d²/2`."""
    return gap.square() / 2


OBJECTIVES: dict[str, Callable[[Tensor], Tensor]] = {
    "kl": kl,
    "tv": variation,
    "log-acceptance": log_acceptance,
}
"""Losses of a step of the sampler by name, of the distance between guided means `[N]`."""


class MarDrafterRecipe(MarRecipe):
    """Distils `drafter` from the target of a pipeline folder.

    The folder holds `transformer` and `text_encoder` too.

    Args:
        config, pipeline, init, rate: see `MarRecipe`.
        objective: the loss of the sampler's steps, one of `OBJECTIVES`, under guidance; None:
            squared errors of the noise, with guidance and without.

    Raises:
        InputError: there is no such objective.
    """

    name = "drafter"
    texts: ClassVar = dict(
        title="Drafter of the shapes world's masked autoregressive transformer",
        purpose="drafts denoising steps of continuous tokens for the embedded target",
        limits="distilled from one target: for others it is accepted less often; pictures of "
        "its own are poor",
    )

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        init: str | None = None,
        rate: float = 2e-3,
        objective: str | None = None,
    ) -> None:
        if objective is not None:
            check_name("objective", objective, OBJECTIVES)
        self.objective = objective
        super().__init__(config, pipeline, init, rate)

    def prepare(self, init: str | None) -> None:
        self.teacher: MarTransformer = self.component(MarTransformer, "transformer")
        self.encoder = self.component(T5EncoderModel, "text_encoder")
        self.model = MarTransformer(**DRAFTER)
        self.model.init_weights()
        self.start(init)

    def loss(self, batch: tuple[list[str], Tensor], rng: np.random.Generator, step: int) -> Loss:
        schedule = self.teacher.schedule
        if self.objective is None:
            _, taught, learnt = self._pair(self.model, *batch, rng, schedule)
            error = F.mse_loss(learnt.noise, taught.noise)
            guided = F.mse_loss(learnt.guided, taught.guided)
            figures = {"error": error, "guided_error": guided}
        else:  # the last step has no chance in it
            steps = schedule.respaced(SAMPLER_STEPS)
            noisy, taught, learnt = self._pair(self.model, *batch, rng, steps, first=1)
            apart = OBJECTIVES[self.objective](self._gap(noisy, taught, learnt))
            figures = {self.objective: apart.mean()}
        # the variances alone: at equal means
        mean = torch.zeros_like(learnt.log_variance)
        figures["nats"] = divergence(mean, taught.log_variance, mean, learnt.log_variance).mean()
        total = sum(figures.values(), torch.zeros(()))
        return total, {name: float(x.detach()) for name, x in figures.items()}

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
        asked = self.teacher.config.sample_guidance  # at the last tokens, as pictures are drawn
        guidance = 1 + (asked - 1) * known.shape[1] / tokens.shape[1]
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
        logs = [guess.log_variance.chunk(2)[0] for guess in (taught, learnt)]
        gap = self._gap(noisy, taught, learnt)
        return {
            "held_out_error": float(F.mse_loss(learnt.noise, taught.noise)),
            "held_out_guided_error": float(F.mse_loss(learnt.guided, taught.guided)),
            "held_out_deviation_ratio": float((0.5 * (logs[1] - logs[0])).exp().mean()),
            # of a maximal coupling, were the deviations the target's
            "held_out_acceptance": float(1 - variation(gap).mean()),
        }

    def _gap(self, noisy: NoisyTokens, taught: Guess, learnt: Guess) -> Tensor:
        """Distance of the guided means `[N]`, in deviations of the target as pictures are drawn."""
        there, here = (
            noisy.schedule.mean(noisy.noisy, guess.guided, noisy.t) for guess in (taught, learnt)
        )
        deviation = (0.5 * taught.log_variance.chunk(2)[0]).exp()
        gap: Tensor = ((there - here) / deviation).norm(dim=-1)
        return gap / self.teacher.config.sample_temperature
