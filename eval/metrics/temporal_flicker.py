"""VBench's temporal flickering: how much consecutive frames of a video differ, pixel by pixel.

Huang et al. 2024, "VBench: Comprehensive Benchmark Suite for Video Generative Models":
`(255 − mean over pairs of frames of the mean absolute difference) / 255`, 1 being a still video.
VBench computes it on decoded files and on prompts and videos without motion only: on moving ones
motion counts as flicker, and frames that have not been through a codec score a little otherwise.
"""

from __future__ import annotations

from itertools import pairwise

from ...rewards.base import Images, to_uint8
from .base import VideoMetric


def temporal_flicker(frames: Images) -> float:
    """The score of one video, 0 to 1, from its frames in order (uint8 `[T, 3, H, W]` or PIL).

    Raises:
        ValueError: fewer than two frames, or frames of different sizes.
    """
    import torch

    video = to_uint8(frames).to(torch.int16)
    if len(video) < 2:
        raise ValueError(f"a video of {len(video)} frames has no pair of consecutive ones")
    differences = [(b - a).abs().double().mean() for a, b in pairwise(video)]
    return (255 - float(torch.stack(differences).mean())) / 255


METRIC = VideoMetric(
    name="temporal_flicker",
    summary="likeness of consecutive frames, 1 if still",
    bounds=(0, 1),
    video_scorer=lambda given: (
        lambda metadata, frames: {"temporal_flicker": temporal_flicker(frames)}
    ),
)
