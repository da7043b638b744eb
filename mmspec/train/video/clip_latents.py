"""Batches of the video world as tensors, and their latents, cached on disk."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...models.wan.vae import encode_block
from ...worlds.shapes.scene import in_turn
from ...worlds.shapes.vocabulary import Split
from ...worlds.video_world.clip import render_clip, sample
from ...worlds.video_world.vocabulary import KINDS
from ..feature_cache import read_cached, write_cached


def clip_batch(
    rng: np.random.Generator,
    size: int,
    frames: int,
    resolution: int,
    split: Split = "train",
    late: int = 0,
) -> tuple[list[str], Tensor]:
    """`size` captions and their clips `[size, frames, 3, resolution, resolution]` in [-1, 1].

    The kinds take turns, so that every batch is balanced.

    Args:
        late: the clips begin at a frame below this one, at random, or at the first if it is 0.
    """
    captions, clips = [], []
    for kind in in_turn(rng, KINDS, size):
        prompt, clip = sample(rng, kind, split)
        start = int(rng.integers(late)) if late else 0
        captions.append(prompt.prompt)
        clips.append(render_clip(clip, range(start, start + frames), resolution))
    pixels = torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3)
    return captions, pixels.float().div_(127.5).sub_(1)


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
        folder: of an autoencoder's latents, see `cache_folder`.
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
