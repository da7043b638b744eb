"""CLIPScore: how well a picture fits its prompt, by CLIP.

Hessel et al. 2021, "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", section 3.
The paper scales by 2.5; reports of generated pictures scale by 100, as here.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..registry import resolve
from .base import Images
from .registry import FeaturePart, RewardPart

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self

    from .networks.clip import OpenCLIP

_WEIGHTS = "a folder in open_clip's format, such as laion/CLIP-ViT-L-14-laion2B-s32B-b82K"
CLIP = FeaturePart("clip", "mmspec.rewards.networks.clip:OpenCLIP", weights=_WEIGHTS)
CLIP_SCORE = RewardPart(
    "clip_score", "mmspec.rewards.clip_score:CLIPScore", weights=_WEIGHTS, bounds=(0, 100)
)


class ClipReward:
    """Base of a `Reward` by the embeddings of a CLIP."""

    def __init__(self, clip: OpenCLIP) -> None:
        self.clip = clip

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 cosines `[N]` on the CPU; `prompts[i]` belongs to `images[i]`.

        Raises:
            ValueError: not one prompt per picture.
        """
        return self.clip.similarity(prompts, images)


class CLIPScore(ClipReward):
    """`100 · max(cos, 0)` of the prompt's and the picture's CLIP embeddings.

    Scores of different CLIPs don't compare: name the model beside the number.
    """

    name = "clip_score"
    network = "mmspec.rewards.networks.clip:OpenCLIP"

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, **options: Any) -> Self:
        """Load the CLIP of a folder in open_clip's format; see `OpenCLIP.from_pretrained`."""
        return cls(resolve(cls.network).from_pretrained(path, **options))

    def score(self, prompts: Sequence[str], images: Images) -> Tensor:
        """Float32 scores `[N]` from 0 to 100; see `ClipReward.score`."""
        return 100 * super().score(prompts, images).clamp(min=0)
