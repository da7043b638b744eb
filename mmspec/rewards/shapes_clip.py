"""CLIPScore and features of the embedded CLIP, which knows the shapes world alone."""

from __future__ import annotations

from .clip_score import CLIPScore
from .registry import FeaturePart, RewardPart

SHAPES_CLIP = FeaturePart("shapes_clip", "mmspec.rewards.networks.clip:ShapesCLIP")
SHAPES_CLIP_SCORE = RewardPart(
    "shapes_clip_score", "mmspec.rewards.shapes_clip:ShapesCLIPScore", bounds=(0, 100)
)


class ShapesCLIPScore(CLIPScore):
    """CLIPScore by the embedded CLIP, or by the one that `mmspec train` has written to a path."""

    name = "shapes_clip_score"
    network = SHAPES_CLIP.cls
