"""A reward of pictures applied to a video, frame by frame.

The worst frame is what speculative decoding of video blocks decides by (SDVG); the mean hides a
single broken frame.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...rewards.base import Images, Reward
from ...rewards.registry import load_reward, reward_names
from .base import Figures, VideoMetric, VideoScorer

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from ..measure.score_files import Given

USUAL = "shapes_clip_score"  # where nobody gives a reward's weights


def frame_rewards(reward: Reward, prompt: str, frames: Images, batch: int = 16) -> Tensor:
    """Scores of a video's frames (uint8 `[T, 3, H, W]` or PIL) for its prompt, float32 `[T]`.

    Args:
        batch: frames a call of the scorer.

    Raises:
        ValueError: no frames.
    """
    import torch

    if not len(frames):
        raise ValueError("a video without frames has no reward")
    parts = [frames[first : first + batch] for first in range(0, len(frames), batch)]
    return torch.cat([reward.score([prompt] * len(part), part) for part in parts])


def _video_scorer(given: Given) -> VideoScorer:
    """A mean and a worst frame by every reward whose weights are given."""
    named = [name for name in given.weights if name in reward_names()] or [USUAL]
    rewards = {name: load_reward(name, given.weights.get(name), given.device) for name in named}

    def score(metadata: Mapping[str, Any], frames: Sequence[Image.Image]) -> Figures:
        found: Figures = {}
        for name, reward in rewards.items():
            scores = frame_rewards(reward, metadata["prompt"], frames)
            found[f"{name}_mean"] = float(scores.mean())
            found[f"{name}_worst_frame"] = float(scores.min())
        return found

    return score


METRIC = VideoMetric(
    name="frame_reward",
    summary="rewards of a video's frames: their mean, and the worst frame's",
    video_scorer=_video_scorer,
)
