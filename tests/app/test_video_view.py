"""A clip on the page: what is said of its blocks, and its own pace."""

from __future__ import annotations

import base64
import io
import math
import re

import pytest
import torch
from PIL import Image, ImageSequence
from wans import tiny_pipeline

from mmspec import SpecConfig
from mmspec.app.generation_view import GenerationRequest
from mmspec.app.views import VideoView
from mmspec.pipelines.output import VideoBlock


def block(number: int, made_by: str, rewards: list[float]) -> VideoBlock:
    return VideoBlock(0, number, torch.zeros(5, 3, 8, 8), made_by, rewards, torch.zeros(1))


def side(pipe, config: SpecConfig) -> VideoView:
    pipe.enable_speculation(config)
    return VideoView(pipe, GenerationRequest("a red circle", config, "x", call={"blocks": 3}))


@pytest.fixture(scope="module")
def pipe():
    return tiny_pipeline()


@pytest.mark.parametrize(
    ("made_by", "rewards", "said"),
    [
        ("target", [], "block 3, by the target"),
        ("drafter", [], "block 3, drafted"),
        ("drafter", [31.25, 28.5], "block 3, drafted: scored 28.5"),
        ("target", [11.0, 12.0], "block 3, by the target: the draft scored 11"),
        ("target", [11.0, math.nan], "block 3, by the target: the draft could not be judged"),
    ],
)
def test_words_of_a_block(pipe, made_by, rewards, said):
    shown = side(pipe, SpecConfig("plain"))
    shown.add(pipe, block(2, made_by, rewards))
    assert re.findall(r"<span>(.*?)</span>", shown.html()) == [said.replace("'", "&#x27;")]
    assert f"mm-by-{made_by}" in shown.html()


def test_figures_of_a_clip(pipe):
    """A target takes as many steps as it made blocks of, whatever else it wrote."""
    config = SpecConfig("random-routing", draft_share=1.0)
    shown = side(pipe, config)
    shown.request.call["num_inference_steps"] = 2
    shown.run(lambda: False)
    found = dict(shown.meters())
    assert found["blocks"] == "3 of 3"
    assert found["steps that the target took"] == "2"
    assert found["drafts kept"] == "2 of 2 (100%)"
    assert found["output that was drafted"] == "2 of 3 blocks"


def test_film_is_played_at_its_pace(pipe):
    """16 frames a second: 62.5 milliseconds each, none of which a film's times can say."""
    shown, generator = side(pipe, SpecConfig("plain")), torch.Generator().manual_seed(0)
    for number in range(4):
        made = block(number, "target", [])
        made.frames.uniform_(-1, 1, generator=generator)
        shown.add(pipe, made)
    assert len(times(shown)) == 5  # the newest block, as long as there is more to come
    shown.over = True
    assert len(times(shown)) == 20
    assert sum(times(shown)) == 20 * 62.5


def times(shown: VideoView) -> list[float]:
    """Milliseconds of the frames of a side's film."""
    film = base64.b64decode(re.search(r"data:image/webp;base64,([^\"]+)", shown.html())[1])
    with Image.open(io.BytesIO(film)) as clip:
        return [frame.info["duration"] for frame in ImageSequence.Iterator(clip) if frame.load()]


@pytest.mark.parametrize(("size", "strip"), [((480, 832), (417, 80)), ((16, 24), (72, 16))])
def test_strips_are_as_high_as_they_are_shown(pipe, size, strip):
    """Twice that, for sharp screens, and no higher than the frames."""
    shown = side(pipe, SpecConfig("plain"))
    shown.add(pipe, VideoBlock(0, 0, torch.zeros(5, 3, *size), "target", [], torch.zeros(1)))
    image = base64.b64decode(re.search(r"data:image/png;base64,([^\"]+)", shown.html())[1])
    with Image.open(io.BytesIO(image)) as opened:
        assert opened.size == strip
