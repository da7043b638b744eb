"""A reward of pictures applied to a video, frame by frame.

The worst frame is what speculative decoding of video blocks decides by (SDVG); the mean hides a
single broken frame.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...rewards.base import Images, Reward


@dataclass(frozen=True)
class FrameReward:
    """A video's scores: of each frame `[T]`, float32, their mean, the lowest, and which that is."""

    frames: Tensor
    mean: float
    worst: float
    worst_frame: int


def frame_reward(reward: Reward, prompt: str, frames: Images, batch: int = 16) -> FrameReward:
    """Scores one video's frames (uint8 `[T, 3, H, W]` or PIL) against its prompt.

    Args:
        reward: the scorer.
        prompt: the video's prompt.
        frames: the video.
        batch: frames a call of the scorer.

    Raises:
        ValueError: no frames.
    """
    if not len(frames):
        raise ValueError("a video without frames has no reward")
    parts = [frames[first : first + batch] for first in range(0, len(frames), batch)]
    scores = torch.cat([reward.score([prompt] * len(part), part) for part in parts])
    worst = int(scores.argmin())
    return FrameReward(scores, float(scores.mean()), float(scores[worst]), worst)
