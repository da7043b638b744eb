"""CLIPScore: how well a picture fits its prompt, by CLIP.

Hessel et al. 2021, "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", section 3.
The paper scales by 2.5; reports of generated pictures scale by 100, as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .base import Images
from .part import FeaturePart, RewardPart

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from .networks.clip import OpenCLIP

_WEIGHTS = "a folder in open_clip's format, such as laion/CLIP-ViT-L-14-laion2B-s32B-b82K"
CLIP = FeaturePart("clip", "mmspec.rewards.networks.clip:OpenCLIP", weights=_WEIGHTS)
CLIP_SCORE = RewardPart(
    "clip_score", "mmspec.rewards.clip_score:CLIPScore", weights=_WEIGHTS, bounds=(0, 100)
)


class CLIPScore:
    """`100 · max(cos, 0)` of the prompt's and the picture's CLIP embeddings.

    Scores of different CLIPs don't compare: name the model beside the number.
    """

    name = "clip_score"

    def __init__(self, clip: OpenCLIP) -> None:
        self.clip = clip

    @classmethod
    def from_pretrained(
        cls, path: str | Path, *, device: str | torch.device = "cpu", batch_size: int = 32
    ) -> CLIPScore:
        """With the CLIP of a folder in open_clip's format; see `OpenCLIP.from_pretrained`."""
        from .networks.clip import OpenCLIP

        return cls(OpenCLIP.from_pretrained(path, device=device, batch_size=batch_size))

    @property
    def device(self) -> torch.device:
        """Where the model lies."""
        return self.clip.device

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` on the CPU, from 0 to 100; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        return 100 * self.clip.similarity(prompts, images).clamp(min=0)
