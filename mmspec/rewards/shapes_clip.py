"""CLIPScore and features of the embedded CLIP, which knows the shapes world alone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from .clip_score import CLIPScore
from .part import FeaturePart, RewardPart

if TYPE_CHECKING:
    import torch

SHAPES_CLIP = FeaturePart("shapes_clip", "mmspec.rewards.networks.shapes_clip:ShapesCLIP")
SHAPES_CLIP_SCORE = RewardPart(
    "shapes_clip_score", "mmspec.rewards.shapes_clip:ShapesCLIPScore", bounds=(0, 100)
)


class ShapesCLIPScore(CLIPScore):
    """CLIPScore by the embedded CLIP: `100 · max(cos, 0)`."""

    name = "shapes_clip_score"

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        *,
        device: str | torch.device = "cpu",
        batch_size: int = 64,
    ) -> ShapesCLIPScore:
        """With the embedded model, or the one in `path`; see `ShapesCLIP.from_pretrained`."""
        from .networks.shapes_clip import ShapesCLIP

        return cls(ShapesCLIP.from_pretrained(path, device=device, batch_size=batch_size))
