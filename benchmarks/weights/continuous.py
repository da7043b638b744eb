"""Rounded weights of a MAR: seconds of its pictures, and how far its denoising steps move."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from mmspec.eval.measure.ideal_speedup import call_seconds
from mmspec.methods import SpecConfig
from mmspec.models.mar.iterations import HeadPrediction, MarPlan

from .subject import CAPTIONS, linears_of

CALL: dict[str, Any] = dict(
    num_iterations=8,
    guidance_scale=3.0,
    guidance_schedule="linear",
    temperature=1.0,
    diffusion_steps=25,
)
DRAWS = 32  # of each step's law, for its total variation


class ContinuousSubject:
    """Pictures of continuous tokens: the backbone's blocks and the diffusion head's are rounded."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, head = pipe, pipe.transformer.head
        parts: list[nn.Module] = [*pipe.transformer.blocks, *head.blocks]
        self.linears = [m for part in parts for m in linears_of(part)]
        self.linears.append(head.final_layer.modulation)

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out = self.pipe(
            **self._asked(sample),
            generator=torch.Generator().manual_seed(sample),
            output_type="latent",
            **CALL,
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return out.images, seconds / out.images.shape[1]

    def apart(self, sample: int, tokens: Tensor, weights: str | None) -> tuple[Tensor, None]:
        """Distances of every step's law, all channels of a token at once, along unrounded steps."""
        found = []
        told = self._predictions(sample, tokens, None), self._predictions(sample, tokens, weights)
        for truth, rounded in zip(*told, strict=True):
            steps = truth.denoiser.steps
            noise = truth.noises(steps)
            x = noise[:, 0]
            for t in range(steps - 1, 0, -1):  # the last adds no noise: it has no law
                at = torch.full((len(x),), t, device=x.device)
                law = truth.denoiser.step(x, at, truth.condition)
                found.append(variation(law, rounded.denoiser.step(x, at, rounded.condition)))
                x = law[0] + law[1] * noise[:, steps - t]
        return torch.cat(found), None

    def _asked(self, sample: int) -> dict[str, Any]:
        if self.pipe.captioned:
            return {"prompt": CAPTIONS[sample % len(CAPTIONS)]}
        return {"class_labels": sample % self.pipe.class_count}

    def call(self, rows: int, weights: str | None) -> float:
        """Seconds of a call of the head for `rows` tokens."""
        config = self.pipe.transformer.config
        tokens = torch.zeros(1, self.pipe.transformer.length, config.token_dim)
        first = self._predictions(0, tokens, weights)[0]
        condition = first.condition[:1].expand(rows, -1)
        x, at = condition.new_zeros(rows, config.token_dim), torch.ones(rows, dtype=torch.long)
        step = partial(first.denoiser.step, x, at, condition)
        return statistics.median(call_seconds(step, 15))

    def _predictions(
        self, sample: int, tokens: Tensor, weights: str | None
    ) -> list[HeadPrediction]:
        """Every iteration's, where those before it drew the `tokens [1, L, C]`."""
        pipe, length = self.pipe, self.pipe.transformer.length
        plan = MarPlan(
            length, **{"iterations" if n == "num_iterations" else n: v for n, v in CALL.items()}
        )
        features = pipe.features(list(self._asked(sample).values()), None, plan.guided)
        model = pipe.transformer
        backbone = pipe.backbone(model, weights, features, plan, [sample])
        with pipe.rounded(model, weights):
            return list(backbone.predictions(tokens))


def variation(law: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> Tensor:
    """Total variation `[R]` of normal laws, means and deviations `[R, C]`, by draws of the first.

    `E_p[(1 − q / p)⁺]`; the mean over draws is unbiased.
    """
    mean, std = (part.double() for part in law)
    rng = torch.Generator().manual_seed(0)
    x = mean + std * torch.randn(DRAWS, *mean.shape, generator=rng, dtype=mean.dtype)

    def density(of: tuple[Tensor, Tensor]) -> Tensor:
        centre, width = (part.double() for part in of)
        return (-0.5 * ((x - centre) / width) ** 2 - width.log()).sum(-1)

    return (1 - (density(other) - density(law)).exp()).clamp_min(0).mean(0)
