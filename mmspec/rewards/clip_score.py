"""CLIPScore: how well a picture fits its prompt, by CLIP.

Hessel et al. 2021, "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", section 3.
The paper scales by 2.5; reports of generated pictures scale by 100, as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from .base import Images
from .clip import OpenCLIP


class ClipReward:
    """A `Reward` by the cosine of the prompt's and the picture's CLIP embeddings."""

    def __init__(self, clip: OpenCLIP) -> None:
        self.clip = clip

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.clip.device

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 cosines `[N]` on the CPU, from −1 to 1; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        return self.clip.similarity(prompts, images)


class CLIPScore(ClipReward):
    """`100 · max(cos, 0)`, from 0 to 100.

    Scores of different CLIPs don't compare: name the model beside the number.
    """

    name = "clip_score"
    network: ClassVar[Any] = OpenCLIP

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, **options: Any) -> CLIPScore:
        """With the CLIP of a folder in open_clip's format; see `OpenCLIP.from_pretrained`."""
        return cls(cls.network.from_pretrained(path, **options))

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """100 times the cosines, 0 where they are negative; see `ClipReward.score`."""
        return 100 * super().score(prompts, images).clamp(min=0)
