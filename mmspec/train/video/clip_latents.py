"""Latents of the video world's clips, cached on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.wan.vae import encode_block
from ..feature_cache import read_cached, write_cached
from .batches import clip_batch


@dataclass(frozen=True)
class ClipBatch:
    """Clips of a training step, rendered or as the latents that were kept of them.

    Attributes:
        captions: of each.
        frames: `[R, T, 3, H, W]` in [-1, 1]; None: there are latents.
        latents: `[R, F, C, h, w]`; None: there are frames.
        file: where their latents are kept.
    """

    captions: list[str]
    frames: Tensor | None
    latents: Tensor | None
    file: Path


def draw_cached(
    folder: Path, seed: int, number: int, size: int, frames: int, resolution: int
) -> ClipBatch:
    """Batch `number` of `size` clips, always the same; rendered unless its latents are kept.

    Args:
        folder: of an autoencoder's latents, see `kept.home`.
    """
    file = folder / f"{seed}-{resolution}px-{size}x{frames}-{number}.pt"
    kept = read_cached(file)
    if kept is not None:
        return ClipBatch(kept["captions"], None, kept["latents"].float(), file)
    rng = np.random.default_rng([seed, number])
    captions, pixels = clip_batch(rng, size, frames, resolution)
    return ClipBatch(captions, pixels, None, file)


@torch.no_grad()
def latents_of(vae: Any, batch: ClipBatch, device: str) -> Tensor:
    """The latents of a batch `[R, F, C, h, w]` in float32; new ones are kept, as halves."""
    if batch.frames is None:
        assert batch.latents is not None
        return batch.latents.to(device)
    found, _ = encode_block(vae, batch.frames.to(device))
    write_cached(batch.file, {"captions": batch.captions, "latents": found.half().cpu()})
    return found.float()
