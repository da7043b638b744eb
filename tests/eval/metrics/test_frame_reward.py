"""Frame rewards: the mean and the worst frame, whatever the batches."""

from __future__ import annotations

import pytest
import torch
from PIL import Image

from mmspec.eval.metrics.frame_reward import frame_rewards
from mmspec.rewards.base import to_uint8


class Brightness:
    """The mean of the pixels, and a record of the batches."""

    name = "brightness"

    def __init__(self):
        self.batches = []

    def score(self, prompts, images):
        self.batches.append(list(prompts))
        return to_uint8(images).float().mean((1, 2, 3))


SHADES = [40, 30, 90, 10, 80, 50, 60]


@pytest.mark.parametrize("batch", [1, 3, 7, 16])
@pytest.mark.parametrize("as_tensor", [True, False])
def test_every_frame_is_scored(batch, as_tensor):
    frames = [Image.new("RGB", (5, 4), (s, s, s)) for s in SHADES]
    reward = Brightness()
    scores = frame_rewards(reward, "a star", to_uint8(frames) if as_tensor else frames, batch)
    assert scores.tolist() == SHADES
    assert [p for batch in reward.batches for p in batch] == ["a star"] * len(SHADES)
    assert max(map(len, reward.batches)) == min(batch, 7)


def test_no_frames_are_refused():
    with pytest.raises(ValueError, match="without frames"):
        frame_rewards(Brightness(), "a star", torch.zeros(0, 3, 4, 4, dtype=torch.uint8))
