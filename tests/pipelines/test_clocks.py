"""Seconds by phase and part: a device works on behind the host, and is waited for at an end."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from mars import captioned_pipeline
from wans import tiny_pipeline

from mmspec import ImagePipeline, VideoPipeline
from mmspec.devices import wait
from mmspec.pipelines.video.stats import VideoStats

SECOND_GPU = torch.device("cuda:1")


@pytest.fixture
def streams(monkeypatch) -> list:
    """The devices whose current stream was waited for."""
    waited = []

    def current_stream(device=None):
        return SimpleNamespace(synchronize=lambda: waited.append(device))

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    return waited


def slow_device(monkeypatch, *modules: str) -> list:
    """A clock that stands still but where a device is waited for, which takes a second each time;
    the devices that were."""
    waited = []
    clock = SimpleNamespace(perf_counter=lambda: float(len(waited)))
    for module in ("engine.stats", "pipelines.video.stats"):
        monkeypatch.setattr(f"mmspec.{module}.time", clock)
    for module in modules:
        monkeypatch.setattr(f"mmspec.pipelines.{module}.wait", waited.append)
    return waited


def test_its_own_stream_is_waited_for(streams):
    wait(torch.device("cpu"))
    assert not streams
    wait(SECOND_GPU)
    assert streams == [SECOND_GPU]


def test_a_part_of_clips_waits_for_their_device(streams):
    stats = VideoStats(device=SECOND_GPU)
    with stats.part("draft"):
        assert not streams
    assert streams == [SECOND_GPU]


def test_clips(monkeypatch):
    pipe = tiny_pipeline()
    waited = slow_device(monkeypatch, "video.pipeline", "video.stats")
    monkeypatch.setattr(VideoPipeline, "device", SECOND_GPU)
    stats = pipe("a red circle", num_frames=13, num_inference_steps=1).stats
    assert stats.seconds["encode"] == 1
    assert stats.parts == {"regenerate": 2, "decode": 2, "commit": 2}
    assert waited == [SECOND_GPU] * 7


def test_pictures(monkeypatch, tiny_folder):
    pipe = ImagePipeline.from_pretrained(tiny_folder)
    pipe.set_progress_bar_config(disable=True)
    waited = slow_device(monkeypatch, "image.token_pipeline")
    assert pipe("a red circle").stats.seconds["encode"] == 1
    assert waited == [pipe.device]


def test_pictures_of_continuous_tokens(monkeypatch):
    pipe = captioned_pipeline()
    waited = slow_device(monkeypatch, "continuous.pipeline")
    stats = pipe("a red circle", num_iterations=5, diffusion_steps=6).stats
    assert stats.seconds["encode"] == 1
    assert stats.seconds["backbone"] == stats.backbone_calls + 1 == 6  # the last finds none left
    assert waited == [pipe.device] * 7
