"""The clip world's judge as metrics: its own figures on true clips, and on wrong ones."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from mmspec.eval.judges.clips import ClipJudge, ClipMetric
from mmspec.eval.metrics.registry import metrics_of
from mmspec.worlds.video_world.clip import held_out_clips, render_clip, sample_clip
from mmspec.worlds.video_world.judge import judge
from mmspec.worlds.video_world.vocabulary import Timing

HELD_OUT = [line.prompt for line in held_out_clips(5)]


def clip_of(prompt):
    return sample_clip(np.random.default_rng(0), prompt)


def pictures(frames: np.ndarray) -> list[Image.Image]:
    return [Image.fromarray(frame) for frame in frames]


@pytest.mark.parametrize("place", [0, 4])  # a move, and one behind another
def test_metrics_are_the_judges(place):
    item = HELD_OUT[place]
    frames = render_clip(clip_of(item), 21)
    wrong = np.concatenate([frames[:9], frames[:12]])  # the second block begins again
    for clip in (frames, wrong):
        scores, why = ClipJudge()(item, pictures(clip))
        found = judge(clip, item)
        assert scores["correctness"] == found.score
        assert scores["attributes"] == found.attributes.mean()
        assert scores["motion"] == found.motion.mean()
        assert ("order" in scores) == (item.tag in ("past", "behind", "in_front"))
        assert set(scores) <= set(metrics_of(ClipMetric).keys())
        assert why.startswith(f"attributes {scores['attributes']:.2f}, motion ")
    assert ClipJudge()(item, pictures(frames))[0]["correctness"] > 0.95
    assert scores["motion"] < 0.95


def test_order_counts_the_frames_in_which_they_pass():
    item = HELD_OUT[4]
    frames = render_clip(clip_of(item), 69)
    passing = judge(frames, item).order
    assert np.isfinite(passing).any()
    assert ClipJudge()(item, pictures(frames))[0]["order"] == np.nanmean(passing)
    apart = np.flatnonzero(np.isnan(passing))[:2]  # a clip too short for them to meet
    assert list(apart) == [0, 1]
    assert ClipJudge()(item, pictures(frames[:2]))[0]["order"] == 1


def test_blocks_are_the_models():
    item = HELD_OUT[0]
    frames = render_clip(clip_of(item), 13)
    half = np.concatenate([frames[:5], np.zeros_like(frames[5:])])
    timing = Timing(2, 4)  # 5 frames, then 8
    scores, _ = ClipJudge(timing)(item, pictures(half))
    assert scores["correctness"] == judge(half, item, timing=timing).score
    assert scores["correctness"] == pytest.approx(0.5, abs=0.05)
