"""Temporal flickering: closed forms, and a slow reading of VBench's formula."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image

from mmspec.eval.metrics.temporal_flicker import temporal_flicker


def video(*shades: int, side: int = 4) -> torch.Tensor:
    return torch.tensor(shades, dtype=torch.uint8)[:, None, None, None].expand(-1, 3, side, side)


def test_closed_forms():
    assert temporal_flicker(video(7, 7, 7)) == 1.0
    assert temporal_flicker(video(0, 255, 0, 255)) == 0.0
    assert temporal_flicker(video(0, 51)) == pytest.approx(0.8)
    assert temporal_flicker(video(0, 51, 51)) == pytest.approx(0.9)


def slow(frames: np.ndarray) -> float:
    total = 0.0
    for before, after in pairwise(frames):
        pairs = zip(before.ravel().tolist(), after.ravel().tolist(), strict=True)
        total += sum(abs(a - b) for a, b in pairs) / before.size
    return (255 - total / (len(frames) - 1)) / 255


def test_equals_the_slow_reading_as_tensor_and_as_pictures():
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 7, 3), np.uint8)
    expected = slow(pixels)
    tensor = torch.from_numpy(pixels).movedim(-1, 1)
    assert temporal_flicker(tensor) == pytest.approx(expected, rel=1e-12)
    pictures = [Image.fromarray(frame) for frame in pixels]
    assert temporal_flicker(pictures) == pytest.approx(expected, rel=1e-12)


def test_a_single_frame_and_mixed_sizes_are_refused():
    with pytest.raises(ValueError, match="1 frames"):
        temporal_flicker(video(3))
    with pytest.raises(ValueError, match="2 sizes"):
        temporal_flicker([Image.new("RGB", (4, 4)), Image.new("RGB", (4, 5))])
