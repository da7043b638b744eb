"""Videos are written whole or not at all, and read back as they were."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
import torch
from imageio.v3 import immeta

from mmspec.errors import InputError
from mmspec.eval.data.videos import Video, default_encoder, write_video


def test_a_failure_leaves_nothing_half_written(tmp_path):
    def encode(frames, path, fps):
        assert path.suffix == ".mp4"  # what encoders know the container by
        path.write_text("half")
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        write_video(torch.zeros(2, 3, 4, 6, dtype=torch.uint8), tmp_path / "a.mp4", 8, encode)
    assert list(tmp_path.iterdir()) == []


def test_without_an_encoder_the_package_is_named(monkeypatch):
    find = importlib.util.find_spec
    absent = {"imageio_ffmpeg", "cv2"}
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name in absent else find(name)
    )
    for missing in (absent, {*absent, "imageio"}):
        absent = missing
        with pytest.raises(InputError, match=r"pip install -e '\.\[video\]'"):
            default_encoder()


def test_a_video_is_read_back(tmp_path):
    """Frames have the number, the (even) size and the pace that were written."""
    shades = torch.arange(0, 240, 20, dtype=torch.uint8)
    frames = shades[:, None, None, None].expand(-1, 3, 20, 36)
    path = tmp_path / "a.mp4"
    write_video(frames, path, 12, default_encoder())
    read = Video(path.name, {}, path).frames()
    assert [frame.size for frame in read] == [(36, 20)] * 12
    found = torch.stack([torch.from_numpy(np.array(frame)) for frame in read]).movedim(-1, 1)
    assert (found.double() - frames.double()).abs().max() <= 6
    assert immeta(path)["fps"] == 12
