"""Rounded weights of a LlamaGen: laws of its pictures' tokens."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from mmspec.eval.measure.ideal_speedup import measure_forward
from mmspec.methods import SpecConfig

from .subject import CAPTIONS, IdsSubject, linears_of


class ImageSubject(IdsSubject):
    """Pictures of a LlamaGen model, in two rows: guidance."""

    def __init__(self, pipe: Any) -> None:
        self.pipe = pipe
        network = pipe.transformer
        self.linears = [*linears_of(network.layers), *linears_of(network.output)]

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        self.pipe.enable_speculation(SpecConfig("plain", target_weights=weights))
        started = time.perf_counter()
        out = self.pipe(
            CAPTIONS[sample % len(CAPTIONS)],
            generator=torch.Generator().manual_seed(sample),
            output_type="tokens",
        )
        seconds = out.stats.decode_seconds(time.perf_counter() - started)
        return out.images, seconds / out.images.shape[1]

    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        caption = [CAPTIONS[sample % len(CAPTIONS)]]
        laws: Tensor = self.pipe.token_laws(caption, tokens, weights=weights)
        return laws[0]

    def call(self, rows: int, weights: str | None) -> float:
        _, grid = self.pipe.network(None, None)
        decoder = self.pipe.decoder(self.pipe.transformer, weights)
        return measure_forward(decoder, 2, grid, rows)
