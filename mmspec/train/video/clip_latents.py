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
from ...worlds.video_world.clip import Clip, render_clip, sample
from ...worlds.video_world.patches import frame_labels
from ...worlds.video_world.vocabulary import KINDS, TIMING
from ..feature_cache import read_cached, write_cached

Drawn = tuple[str, Clip, range]  # a caption, a clip that shows it, and which frames of it


def draw_clips(
    rng: np.random.Generator, size: int, frames: int, split: Split = "train", late: int = 0
) -> list[Drawn]:
    """Draw `size` clips of so many frames; the kinds take turns, so every batch is balanced.

    Args:
        late: the clips begin at a frame below this one, at random, or at the first if it is 0.
    """
    drawn = []
    for kind in in_turn(rng, KINDS, size):
        prompt, clip = sample(rng, kind, split)
        start = int(rng.integers(late)) if late else 0
        drawn.append((prompt.prompt, clip, range(start, start + frames)))
    return drawn


def captions_of(drawn: list[Drawn]) -> list[str]:
    """The captions of clips."""
    return [caption for caption, *_ in drawn]


def render_clips(drawn: list[Drawn], resolution: int) -> Tensor:
    """The clips' frames `[size, T, 3, resolution, resolution]` in [-1, 1]."""
    clips = [render_clip(clip, frames, resolution) for _, clip, frames in drawn]
    pixels = torch.from_numpy(np.stack(clips)).permute(0, 1, 4, 2, 3)
    return pixels.float().div_(127.5).sub_(1)


def clip_batch(
    rng: np.random.Generator,
    size: int,
    frames: int,
    resolution: int,
    split: Split = "train",
    late: int = 0,
) -> tuple[list[str], Tensor]:
    """`size` captions and their clips; see `draw_clips` and `render_clips`."""
    drawn = draw_clips(rng, size, frames, split, late)
    return captions_of(drawn), render_clips(drawn, resolution)


def label_clips(drawn: list[Drawn], resolution: int, patches: int) -> Tensor:
    """The `LABELS` of what each patch shows, `[size, F, patches², 3]`, uint8, in the middle of the
    frames that a latent frame is made of.

    Args:
        patches: a side, in patches.
    """
    rows, step = [], TIMING.factor
    for _, clip, frames in drawn:
        middles = [frames[0], *frames[step - step // 2 :: step]]
        rows.append([frame_labels(clip, at, patches, resolution // patches) for at in middles])
    return torch.from_numpy(np.array(rows, np.uint8)).flatten(2, 3)


@dataclass(frozen=True)
class ClipBatch:
    """Clips of a training step, rendered or as the latents that were kept of them.

    Attributes:
        captions: of each.
        frames: `[R, T, 3, H, W]` in [-1, 1]; None: there are latents.
        latents: `[R, F, C, h, w]`; None: there are frames.
        labels: of what the patches show, see `label_clips`.
        file: where their latents are kept.
    """

    captions: list[str]
    frames: Tensor | None
    latents: Tensor | None
    labels: Tensor
    file: Path


def draw_cached(
    folder: Path, seed: int, number: int, size: int, frames: int, resolution: int, patches: int
) -> ClipBatch:
    """Batch `number` of `size` clips, always the same; rendered unless its latents are kept.

    Args:
        folder: of an autoencoder's latents, see `cache_folder`.
        patches: see `label_clips`.
    """
    file = folder / f"{seed}-{resolution}px-{size}x{frames}-{patches}-{number}.pt"
    kept = read_cached(file)
    if kept is not None:
        return ClipBatch(kept["captions"], None, kept["latents"].float(), kept["labels"], file)
    drawn = draw_clips(np.random.default_rng([seed, number]), size, frames)
    labels = label_clips(drawn, resolution, patches)
    return ClipBatch(captions_of(drawn), render_clips(drawn, resolution), None, labels, file)


@torch.no_grad()
def latents_of(vae: Any, batch: ClipBatch, device: str) -> Tensor:
    """The latents of a batch `[R, F, C, h, w]` in float32; new ones are kept, as halves."""
    if batch.frames is None:
        assert batch.latents is not None
        return batch.latents.to(device)
    found, _ = encode_block(vae, batch.frames.to(device))
    kept = {"captions": batch.captions, "latents": found.half().cpu(), "labels": batch.labels}
    write_cached(batch.file, kept)
    return found.float()
