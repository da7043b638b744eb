"""Wishes for a clip: a speed-up, by seconds that are declared, and a mean reward."""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from itertools import groupby

import pytest
import torch
from safetensors.torch import load_file, save_file
from wans import tiny_pipeline

from mmspec import SpecConfig
from mmspec.errors import InputError
from mmspec.models.wan import clips as wan_clips
from mmspec.pipelines.video.pace import Pace
from mmspec.pipelines.video.stats import VideoStats

# seconds of a call of each part
COSTS = {"draft": 0.125, "decode": 0.0625, "reward": 0.0625, "regenerate": 1.0, "commit": 0.0}
PLAIN = COSTS["regenerate"] + COSTS["decode"]
BLOCKS, STEPS, PROMPT = 48, 4, "a photo of a red circle"
SHORT = 16  # blocks of clips that need no long one
READ = COSTS["regenerate"] / (STEPS + 1)  # another block before the one that is made


class Worst:
    """Rewards in no order, each frame's by its pixels."""

    name = "worst"

    def score(self, prompts, images):
        return (images.double().mean((1, 2, 3)) * 7919).remainder(1).float()


@pytest.fixture
def pipe(monkeypatch):
    """Parts take the declared seconds, whatever the clock says; drafts that stood are read with the
    next block, however many.
    """
    monkeypatch.setattr(wan_clips, "MOST_WAITING", BLOCKS)

    @contextmanager
    def declared(self, name):
        yield
        surplus = made._at_work.target.surplus if name == "regenerate" else 0
        self.parts[name] = self.parts.get(name, 0.0) + COSTS[name] + READ * surplus

    monkeypatch.setattr(VideoStats, "part", declared)
    phase = VideoStats.phase
    monkeypatch.setattr(VideoStats, "phase", lambda self, name: phase(self, f"{name} of the clock"))
    made = tiny_pipeline().to(torch.float64)  # whose rewards are the same, whoever rounds
    made.reward = Worst()
    return made


def clip(pipe, seed=5, blocks=BLOCKS, **knobs):
    pipe.enable_speculation(SpecConfig("sdvg-adaptive", **knobs))
    generator = torch.Generator().manual_seed(seed)
    how = dict(num_frames=8 * blocks - 3, num_inference_steps=STEPS, output_type="latent")
    return pipe(PROMPT, generator=generator, **how)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "target", [1.2, pytest.param(1.5, marks=SLOW), pytest.param(2.0, marks=SLOW), 3.0]
)
def test_a_target_speedup_is_reached(pipe, target, caplog):
    """To one block of the target's and the drafts that it reads, by the seconds of all parts."""
    with caplog.at_level(logging.WARNING):
        out = clip(pipe, target_speedup=target)
    spent, wanted = sum(out.stats.parts.values()), BLOCKS * PLAIN / target
    made = out.made_by[0].count("target")
    stood = [sum(1 for _ in run) for maker, run in groupby(out.made_by[0]) if maker == "drafter"]
    read = sum(stood) - (stood[-1] if out.made_by[0][-1] == "drafter" else 0)
    assert abs(spent - wanted) <= PLAIN + READ * max(stood)
    tried = sum(len(block) > 0 for block in out.rewards[0])
    decodes = tried + made
    known = made * COSTS["regenerate"] + tried * 0.1875 + decodes * COSTS["decode"]
    assert spent == pytest.approx(known + READ * read)
    assert out.stats.parts["regenerate"] == pytest.approx(made * COSTS["regenerate"])
    assert out.stats.parts["commit"] == pytest.approx(READ * read)
    assert not caplog.text


def test_a_speedup_that_is_missed_is_said(pipe, caplog):
    """All drafts stand, and their own seconds are too many."""
    with caplog.at_level(logging.WARNING):
        out = clip(pipe, target_speedup=9.0, forced_blocks=2)
    assert out.made_by[0][2:].count("drafter") >= BLOCKS - 4
    best = BLOCKS * PLAIN / sum(out.stats.parts.values())
    assert f"the target speed-up of 9.00 was missed: {best:.2f}" in caplog.text
    caplog.clear()

    def stop(pipe, *_) -> None:
        pipe.interrupt = True

    pipe(PROMPT, num_frames=21, num_inference_steps=1, callback_on_step_end=stop)
    assert not caplog.text


@pytest.mark.parametrize("slow", [0.5, 2.0])
def test_blocks_that_take_longer_later_are_made_up_for(slow):
    """A target that changes its pace in the middle of a clip, and a coin that it routes by."""
    draw = torch.Generator().manual_seed(3)
    pace, parts = Pace(2.0, 200, 0.5), dict.fromkeys(COSTS, 0.0)
    plain, share = 0.0, 0.5
    for number in range(200):
        regenerate = COSTS["regenerate"] * (slow if number >= 100 else 1.0)
        plain += regenerate + COSTS["decode"]
        falls = number and float(torch.rand(1, generator=draw)) >= share
        made, tried = int(not number or falls), int(number > 0)
        parts["regenerate"] += made * regenerate
        parts["decode"] += (made + tried) * COSTS["decode"]
        parts["draft"] += tried * COSTS["draft"]
        parts["reward"] += tried * COSTS["reward"]
        share = pace.observe(parts, tried, made, 1)
    assert plain / sum(parts.values()) == pytest.approx(2.0, rel=0.15)


def test_until_both_models_were_seen_nothing_is_known():
    pace = Pace(2.0, 10, 0.3)
    assert pace.observe({"regenerate": 1.0, "decode": 0.1}, 0, 1, 1) == 0.3
    assert pace.speedup == pytest.approx(1.0)
    drafts = Pace(2.0, 10, 0.3)
    assert drafts.observe({"draft": 1.0, "decode": 0.1}, 1, 0, 1) == 0.3
    assert drafts.speedup is None


def test_what_both_ways_take_counts():
    """Reading the prompt takes as long as ten blocks: more drafts have to stand."""
    shares = []
    for fixed in (0.0, 10.0):
        pace = Pace(1.2, 20, 0.5, fixed)
        pace.observe({"regenerate": 1.0}, 0, 1, 1)
        shares.append(pace.observe({"regenerate": 1.0, "draft": 0.1}, 1, 0, 1))
    assert shares[0] < shares[1]


@pytest.mark.parametrize(("draft", "said"), [(2.0, True), (0.125, False)])
def test_drafts_that_take_longer_than_they_save_are_said(pipe, draft, said, caplog, monkeypatch):
    """Once a method, without a target too; where half of the drafts stand."""
    monkeypatch.setitem(COSTS, "draft", draft)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            out = clip(pipe, blocks=SHORT, draft_share=0.5)
    (line,) = [record.message for record in caplog.records] or [None]
    spent = sum(out.stats.parts.values())
    plain = f"speculation (sdvg-adaptive) took {spent:.2f} s where plain decoding takes about"
    assert line == (f"{plain} {SHORT * PLAIN:.2f} s here" if said else None)
    caplog.clear()
    pipe.disable_speculation()
    pipe(PROMPT, num_frames=21, num_inference_steps=1)
    assert not caplog.text


@pytest.mark.parametrize("target", [0.1, 0.15])
def test_a_target_mean_reward_is_reached(pipe, target, tmp_path):
    """Of the drafts that stand, at every moment; a clip that goes on remembers."""
    whole = clip(pipe, blocks=SHORT, target_quality=target)
    (makers,), (rewards,) = whole.made_by, whole.rewards
    stood = [min(r) for maker, r in zip(makers, rewards, strict=True) if maker == "drafter"]
    assert 0 < len(stood) < SHORT - 1
    for n in range(1, len(stood) + 1):
        assert sum(stood[:n]) / n >= target - 1e-6
    clip(pipe, blocks=9, target_quality=target)
    save_file(pipe.snapshot(), tmp_path / "clip")
    how = dict(num_frames=8 * SHORT - 3, num_inference_steps=STEPS, output_type="latent")
    rest = pipe(PROMPT, resume=load_file(tmp_path / "clip"), **how)
    assert rest.made_by[0] == makers[9:]
    assert torch.equal(rest.frames, whole.frames[:, 18:])


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (dict(target_speedup=0.5), "target_speedup must be from 1 to 100, not 0.5"),
        (dict(target_quality=math.nan), "target_quality must be a number, not nan"),
        (dict(target_speedup=2.0, target_quality=3.0), "target_speedup and target_quality are"),
        (dict(draft_share=0.2, target_speedup=2.0), "draft_share and target_speedup are goals"),
        (dict(method="sdvg", target_speedup=2.0), "target_speedup is a setting of 'reward-rank'"),
    ],
)
def test_targets_that_can_not_be(knobs, word):
    with pytest.raises(InputError, match=word):
        SpecConfig(**{"method": "sdvg-adaptive", **knobs})


def test_a_target_quality_is_on_the_rewards_scale():
    pipe = tiny_pipeline()
    with pytest.raises(InputError, match="target_quality 300 is no threshold for reward 'router'"):
        pipe.enable_speculation(SpecConfig("sdvg-adaptive", target_quality=300.0))
