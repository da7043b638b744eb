"""Rounded weights of a Wan: seconds of its clips, whose steps follow a flow and draw nothing."""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

from mmspec.eval.measure.ideal_speedup import call_seconds
from mmspec.methods import SpecConfig
from mmspec.models.wan.transformer import TIMESTEPS
from mmspec.pipelines.video.components import VideoSizes

from .measure import REPEATS
from .subject import linears_of

PROMPTS = ("a red circle moves right", "a blue square moves down")
BLOCKS = 2  # of a clip


class VideoSubject:
    """Clips: a call of so many rows denoises a block of as many clips by a step."""

    def __init__(self, pipe: Any) -> None:
        self.pipe, self.model = pipe, pipe.transformer
        self.linears = [layer for block in self.model.blocks for layer in linears_of(block)]
        self.sizes = VideoSizes(pipe.transformer, pipe.vae)

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out = self.pipe(
            PROMPTS[sample % len(PROMPTS)],
            num_frames=self.sizes.frames(BLOCKS),
            generator=torch.Generator().manual_seed(sample),
            output_type="latent",
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return out.frames, seconds / BLOCKS

    def apart(self, sample: int, tokens: Tensor, weights: str | None) -> tuple[Tensor, None]:
        return torch.zeros(0), None

    def call(self, rows: int, weights: str | None) -> float:
        config, (height, width) = self.model.config, self.sizes.latents(None, None)
        text = torch.zeros(rows, 1, config.text_dim)
        cache = self.model.start(text, height, width, limit=1)
        noise = torch.randn(rows, config.num_frame_per_block, config.in_dim, height, width)
        step = partial(self.model.denoise, noise, float(TIMESTEPS), cache)
        with self.pipe.rounded(self.model, weights):
            return statistics.median(call_seconds(step, REPEATS))
