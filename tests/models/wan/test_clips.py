"""A block that is foreseen: what `make` gives once the block before it has joined, and no trace."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from wans import SIZE, rand, tiny_wan

from mmspec.errors import InputError
from mmspec.models.wan.clips import WanClips
from mmspec.models.wan.sampler import FewStepSampler
from mmspec.models.wan.window import ContextWindow

SAMPLERS = [
    FewStepSampler(steps=(1000, 500)),
    FewStepSampler(steps=(1000, 400), guidance_scale=2.0),
]
WINDOWS = [ContextWindow(), ContextWindow(2), ContextWindow(1, sink=2)]


wan = cache(tiny_wan)


def begin(sampler, window, dtype=torch.float64) -> WanClips:
    texts = [rand(1 + sampler.guided, 4, 10, seed=40 + row) for row in range(2)]
    return WanClips(wan(dtype), texts, *SIZE, sampler, 12, window)


def noise(number: int) -> torch.Tensor:
    return rand(2, 2, 4, *SIZE, seed=number)


@torch.no_grad()
@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_undone_as_a_snapshot_undoes_it(sampler, window, dtype):
    """Clips that foresee, and those that are put back: the same blocks to the last bit.

    Blocks wait when drafting begins, and what stands differs from clip to clip.
    """
    ahead, plain = begin(sampler, window, dtype), begin(sampler, window, dtype)
    for clips in (ahead, plain):
        for number in (50, 51):
            for row in range(2):
                clips.join(row, noise(number)[0])
    for number in range(6):
        for row in range(2):
            block = ahead.make(row, noise(number))
            assert torch.equal(plain.make(row, noise(number)), block)
            before = plain.snapshot(row)
            plain.join(row, block)
            wanted = plain.make(row, noise(number + 1))
            plain.restore(row, before)
            assert torch.equal(ahead.foresee(row, block, noise(number + 1)), wanted)
            assert ahead.blocks(row) == plain.blocks(row) == number + 2
            assert not len(ahead.snapshot(row)["waiting"])
            stands = (number + row) % 3 > 0
            emitted = block if stands else rand(2, 4, *SIZE, seed=70 + number).to(block)
            for clips in (ahead, plain):
                clips.join(row, emitted)
            kept = ahead.snapshot(row)  # goes on as if nothing had been foreseen
            assert torch.equal(kept["waiting"], plain.snapshot(row)["waiting"])
            resumed = begin(sampler, window, dtype)
            resumed.restore(row, kept)
            again = plain.snapshot(row)
            assert torch.equal(resumed.make(row, noise(9)), plain.make(row, noise(9)))
            plain.restore(row, again)
            if stands and number % 2:
                ahead.adopt(row)
                assert torch.equal(plain.make(row, noise(number + 1)), wanted)
                ahead_of, plain_of = (clips.snapshot(row) for clips in (ahead, plain))
                assert ahead_of.keys() == plain_of.keys()
                assert all(torch.equal(ahead_of[name], plain_of[name]) for name in ahead_of)


@torch.no_grad()
def test_clip_none_of_whose_blocks_wait_is_resumed():
    clips, resumed = (begin(SAMPLERS[0], WINDOWS[1]) for _ in range(2))
    for number in range(3):
        clips.join(0, noise(number)[0])
    clips.settle(0)
    resumed.restore(0, clips.snapshot(0))
    assert resumed.blocks(0) == clips.blocks(0) == 3
    assert torch.equal(resumed.make(0, noise(4)), clips.make(0, noise(4)))


@torch.no_grad()
def test_calls_of_an_adopted_block_are_counted_once():
    counts = []
    for foresees in (True, False):
        clips = begin(SAMPLERS[0], WINDOWS[2])
        block = clips.make(0, noise(0))
        if foresees:
            clips.foresee(0, block, noise(1))
        clips.join(0, block)
        if foresees:
            clips.adopt(0)
        else:
            clips.make(0, noise(1))
        counts.append(clips.taken())
    assert counts[0] == counts[1] == ([4, 0], [5, 0])


@torch.no_grad()
def test_clip_stays_where_it_was_when_foreseeing_fails(monkeypatch):
    ahead, plain = (begin(SAMPLERS[0], WINDOWS[1]) for _ in range(2))
    blocks = [clips.make(0, noise(0)) for clips in (ahead, plain)]
    denoise, calls = ahead.model.denoise, []

    def broken(*given):
        calls.append(given)
        if len(calls) == 2:  # the first step has written the block
            raise RuntimeError("out of memory")
        return denoise(*given)

    monkeypatch.setattr(ahead.model, "denoise", broken)
    with pytest.raises(RuntimeError):
        ahead.foresee(0, blocks[0], noise(1))
    for clips in (ahead, plain):
        clips.join(0, rand(2, 4, *SIZE, seed=3))
    assert ahead.blocks(0) == plain.blocks(0)
    assert torch.equal(ahead.make(0, noise(1)), plain.make(0, noise(1)))


@torch.no_grad()
def test_what_can_not_be_foreseen():
    clips = begin(SAMPLERS[0], ContextWindow())
    clips.join(0, noise(0)[0])
    with pytest.raises(AssertionError, match="more than one block"):
        clips.foresee(0, noise(1)[0], noise(1))
    for number in range(10):
        clips.join(0, noise(number)[0])
    clips.settle(0)
    with pytest.raises(InputError, match="the cache has room for 12 blocks"):
        clips.foresee(0, noise(1)[0], noise(2))
    assert clips.blocks(0) == 11


@torch.no_grad()
def test_another_rule_of_noise_does_not_go_on():
    kept = begin(SAMPLERS[0], WINDOWS[0]).snapshot(0)
    with pytest.raises(InputError, match=r"of another renoise: 1\.0, not 0\.0"):
        begin(replace(SAMPLERS[0], renoise=0.0), WINDOWS[0]).restore(0, kept)
