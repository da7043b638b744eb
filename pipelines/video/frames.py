"""Blocks of clips as they stand: streamed one by one, and kept in the form that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from ..base import owned
from ..output import VideoBlock
from .speculation import VideoRun

OutputType = Literal["pil", "np", "pt", "latent", "none"]


def emitted(work: VideoRun) -> Iterator[VideoBlock]:
    """The last round's blocks, one a clip."""
    for row, block in enumerate(work.target.emitted):
        maker, rewards = work.stats.made_by[row][-1], work.stats.rewards[row][-1]
        latents, frames = owned(block.latents), owned(block.frames)
        yield VideoBlock(row, work.blocks - 1, frames, maker, rewards, latents)


class ShownFrames:
    """What a call returns of its clips' frames in the form `output_type`, see `VideoOutput`.

    `pictures` makes it of pixels `[T, 3, H, W]` in [0, 1], see `SpeculativePipeline.pictures`.
    """

    def __init__(
        self, output_type: OutputType, rows: int, pictures: Callable[[Tensor, str], Any]
    ) -> None:
        self.output_type, self.pictures = output_type, pictures
        self._kept: list[list[Any]] = [[] for _ in range(rows)]

    def add(self, block: VideoBlock) -> None:
        if self.output_type == "latent":
            self._kept[block.row].append(block.latents)
        elif self.output_type != "none":
            pixels = block.frames.float() / 2 + 0.5
            self._kept[block.row].append(self.pictures(pixels, self.output_type))

    def frames(self) -> Any:
        """All clips, see `VideoOutput.frames`; lists of nothing as long as there is no block."""
        if self.output_type == "none":
            return None
        if self.output_type == "pil" or not any(self._kept):
            return [[frame for block in clip for frame in block] for clip in self._kept]
        if self.output_type == "np":
            return np.stack([np.concatenate(clip) for clip in self._kept])
        with torch.inference_mode(False):
            return torch.stack([torch.cat(clip) for clip in self._kept])
