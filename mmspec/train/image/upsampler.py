"""Recipe of the up-sampler: a small picture's tokens say those of the same scene, twice as large.

What it reads in use are a sibling's samples, and those differ from a scene's own tokens. So in
training some codes are replaced by others near them.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...errors import InputError
from ...models.codebook_neighbours import nearest_codes
from ...models.llamagen.upsampler import SCALE, LatentUpsampler, LatentUpsampling
from ...models.llamagen.vq import VQModel
from ...models.token_grid import TokenGrid
from ...worlds.shapes.vocabulary import Split
from ..base import HELD_OUT_SEED, BaseRecipe
from ..batches import scene_batch
from ..trainer import Loss, TrainConfig
from .distillation_data import batch_of_step

RESOLUTION = 128  # px, of the large pictures
UPSAMPLER = dict(width=64, depth=3)
POOL = 96  # batches whose tokens are kept
HELD_OUT = 64  # scenes of an evaluation
DAMAGE, NEAR = 0.3, 8  # most of a picture's codes that are replaced, by one of so many near codes
POOLED = 20  # neighbours that a hit may be among


class ImageUpsamplerRecipe(BaseRecipe):
    """Trains `LatentUpsampler` on the tokens of the same scenes at two sizes.

    Args:
        config, rate, init: see `BaseRecipe`.
        pipeline: folder with `vq_model`; it receives `upsampler`.
        resolution: side of the large pictures in pixels.
        pool: distinct batches. To draw and encode one costs more than a step, so their tokens are
            kept for the next time.
    """

    name, adamw = "upsampler", 0.01

    def __init__(
        self,
        config: TrainConfig,
        pipeline: Path,
        resolution: int = RESOLUTION,
        rate: float = 2e-3,
        pool: int = POOL,
        init: str | None = None,
    ) -> None:
        super().__init__(config, pipeline, rate)
        self.pool, self.draw = pool, partial(batch_of_step, pool)
        self.vq: VQModel = self.component(VQModel, "vq_model")
        self.codebook = self.vq.quantize.codebook().detach()
        size, width = self.codebook.shape
        self.near = nearest_codes(self.codebook, min(POOLED, size - 1))
        side, rest = divmod(resolution, SCALE * self.vq.downsample_factor)
        if rest or not side:
            raise InputError(
                f"large pictures are a multiple of {SCALE * self.vq.downsample_factor} px, not "
                f"{resolution}"
            )
        self.small = TokenGrid(side, side)
        self.resolutions = resolution // SCALE, resolution
        self.model = LatentUpsampler(size, width, **UPSAMPLER)
        self._examples: dict[int, tuple[Tensor, Tensor]] = {}
        self.start(init)

    def loss(self, batch: int, rng: np.random.Generator, step: int) -> Loss:
        if batch not in self._examples:
            example = self.example([self.config.seed, batch], self.config.batch_size, "train")
            self._examples[batch] = example
        small, large = self._examples[batch]
        latents = self.small.latents(self.damaged(small, rng), self.codebook)  # [B, C, h, w]
        logits = self.model(latents).flatten(2).float()
        return F.cross_entropy(logits, large), {"top1": _rate(logits.argmax(1) == large)}

    @torch.no_grad()
    def example(self, seed: list[int], size: int, split: Split) -> tuple[Tensor, Tensor]:
        """Tokens `[size, h · w]` of small pictures, and those `[size, 4 h · w]` of large ones."""
        pixels = [
            scene_batch(np.random.default_rng(seed), size, side, split)[1]
            for side in self.resolutions
        ]
        small, large = (self.vq.encode(p.to(self.config.device)) for p in pixels)
        return small, large

    def damaged(self, codes: Tensor, rng: np.random.Generator) -> Tensor:
        """The codes `[B, n]`, of which every picture's own share became codes near them."""
        size = tuple(codes.shape)
        share = rng.random((size[0], 1)) * DAMAGE
        hit = torch.from_numpy(rng.random(size) < share).to(codes.device)
        near = self.near[:, :NEAR]
        which = torch.from_numpy(rng.integers(near.shape[1], size=size)).to(codes.device)
        return torch.where(hit, near[codes, which], codes)

    @torch.no_grad()
    def evaluate(self, model: Any) -> dict[str, float]:
        small, large = self.example([*HELD_OUT_SEED], HELD_OUT, "held_out")
        damaged = self.damaged(small, self.held_out_rng())
        figures = {}
        for name, codes in (("", small), ("_damaged", damaged)):
            found = LatentUpsampling(model, self.codebook)(codes, self.small)
            top1 = found == large
            pooled = top1 | (self.near[found] == large[..., None]).any(-1)
            figures[f"held_out_top1{name}"] = _rate(top1)
            figures[f"held_out_top{POOLED}_pooled{name}"] = _rate(pooled)
        return figures

    def card(self, record: dict[str, Any]) -> dict[str, str]:
        rows, (small, large) = self.small.rows, self.resolutions
        scenes = self.pool * record["config"]["batch_size"]
        return dict(
            title="Up-sampler of the shapes world",
            purpose=f"turns the {rows}×{rows} tokens of a {small} px picture into the "
            f"{SCALE * rows}×{SCALE * rows} tokens of a {large} px one",
            limits="every token is chosen by itself: grain and edges do not agree everywhere",
            data=f"{scenes:,} scenes of the procedural shapes world at both sizes, each many "
            "times; some codes replaced by near ones",
        )


def _rate(hit: Tensor) -> float:
    return float(hit.float().mean())
