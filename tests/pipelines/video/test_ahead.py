"""Drafts that are made ahead, while the reward judges: nothing differs but the time."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from safetensors.torch import load_file, save_file
from wans import tiny_pipeline

from mmspec import SpecConfig
from mmspec.errors import InputError
from mmspec.methods import parse_method
from mmspec.models.wan.window import ContextWindow

PROMPTS = ["a photo of a red circle", "two blue squares"]
BLOCKS = 6
TIMED = ("seconds", "parts", "wasted")  # of the counters
MAIN = threading.main_thread()


class Brightness:
    """Judges a frame by its mean; is told when it begins."""

    name = "brightness"

    def __init__(self, begins=lambda: None) -> None:
        self.begins = begins

    def score(self, prompts, images):
        self.begins()
        return images.float().mean((1, 2, 3))


def frames(blocks: int) -> int:
    return 8 * blocks - 3


def make(pipe, config: dict, prompts=PROMPTS, seeds=(5, 6), blocks=BLOCKS, ahead=True, **call):
    """Clips by a method with drafts made ahead, or without."""
    pipe.enable_speculation(SpecConfig(**config, draft_ahead=ahead))
    if "resume" not in call:
        call["generator"] = [torch.Generator().manual_seed(seed) for seed in seeds]
    call = {"num_inference_steps": 2, "output_type": "latent", **call}
    return pipe(prompts, num_frames=frames(blocks), **call)


def same(found, wanted) -> bool:
    """Whether two outputs are one to the last bit, with all counters but those of time."""
    one, other = (out.stats.as_dict() for out in (found, wanted))
    counters = [{k: v for k, v in kept.items() if k not in TIMED} for kept in (one, other)]
    return (
        torch.equal(found.frames, wanted.frames)
        and found.made_by == wanted.made_by
        and found.rewards == wanted.rewards
        and counters[0] == counters[1]
        and found.stats.parts.keys() == wanted.stats.parts.keys()
    )


@pytest.fixture(scope="module")
def pipe():
    made = tiny_pipeline()
    made.reward = Brightness()
    return made


@pytest.fixture(autouse=True)
def no_thread_is_left():
    yield
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("mmspec-side")]


@pytest.fixture(scope="module")
def tau(pipe) -> float:
    """A threshold that the first draft of one of the clips reaches, and that of the other not."""
    out = make(pipe, dict(method="sdvg", tau=-math.inf), ahead=False, blocks=2)
    first, other = (min(clip[1]) for clip in out.rewards)
    assert abs(first - other) > 0.01
    return (first + other) / 2


CASES = {
    "worst": ({"method": "sdvg"}, {}),
    "mean": ({"method": "sdvg", "frame_rule": "mean"}, {}),
    "adaptive": ({"method": "sdvg-adaptive"}, {}),
    "random": ({"method": "random-routing", "draft_share": 0.6}, {}),
    "every": ({"method": "random-routing", "draft_share": 1.0}, {}),
    "none": ({"method": "random-routing", "draft_share": 0.0}, {}),
    "unforced": ({"method": "sdvg-adaptive", "forced_blocks": 0}, {}),
    "forced": ({"method": "sdvg-adaptive", "forced_blocks": 3}, {}),
    "forced to the end": ({"method": "sdvg", "forced_blocks": 9}, {}),
    "fewer steps": ({"method": "sdvg", "draft_steps": 1}, {}),
    "global": ({"method": "sdvg-adaptive"}, {"window": ContextWindow()}),
    "rolling": ({"method": "sdvg-adaptive"}, {"window": ContextWindow(1)}),
    "sink": ({"method": "sdvg-adaptive"}, {"window": ContextWindow(1, sink=2)}),
    "guided": ({"method": "sdvg-adaptive"}, {"guidance_scale": 2.0}),
}


def at(config: dict, tau: float) -> dict:
    """With the threshold, if the method reads one."""
    return {**config, "tau": tau} if config["method"] == "sdvg" else config


RAGGED = ("worst", "adaptive", "random", "rolling", "sink", "guided")
ALIKE = ("mean", "every", "none", "forced", "unforced")  # variations of other cases


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow if n in ALIKE else ()) for n in CASES]
)
def test_same_clips(pipe, tau, name):
    config, call = CASES[name]
    config = at(config, tau)
    on, off = (make(pipe, config, ahead=ahead, **call) for ahead in (True, False))
    assert same(on, off)
    assert off.stats.wasted == 0
    forced = SpecConfig(**config).resolve("video").options["forced_blocks"]
    fallen = [maker == "target" for clip in on.made_by for maker in clip[forced : BLOCKS - 1]]
    assert on.stats.wasted <= sum(fallen)
    if name in RAGGED:  # one clip's draft stands where the other's falls
        assert any(one != other for one, other in zip(*on.made_by, strict=True))


def test_drafts_while_the_reward_judges(pipe, monkeypatch):
    """The reward does not answer before the next draft has begun; behind the last there is none."""
    begun, judged, denoise = threading.Event(), [], pipe.drafter.denoise

    def watched(*given):
        if threading.current_thread() is not MAIN:
            begun.set()
        return denoise(*given)

    def begins():
        judged.append(begun.wait(60))
        begun.clear()

    monkeypatch.setattr(pipe.drafter, "denoise", watched)
    monkeypatch.setattr(pipe, "reward", Brightness(begins))
    steps = dict(num_inference_steps=1, prompts=PROMPTS[0], seeds=(5,))  # one call of denoise each
    config = dict(method="sdvg", tau=math.inf, forced_blocks=0)

    def last_is_alone(_, number, *rest):
        if number == BLOCKS - 1:
            begun.set()

    out = make(pipe, config, callback_on_step_end=last_is_alone, **steps)
    assert judged == [True] * BLOCKS
    assert out.stats.wasted == BLOCKS - 1
    assert not any("drafter" in maker for maker in out.made_by[0])


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_no_draft_is_made_twice(pipe, monkeypatch, guidance):
    """Where all stand: the calls of a drafter that drafts nothing ahead, behind the last none."""
    calls, denoise = [], pipe.drafter.denoise
    monkeypatch.setattr(
        pipe.drafter, "denoise", lambda *given: calls.append(given) or denoise(*given)
    )
    counts = []
    for ahead in (True, False):
        config = dict(method="sdvg", tau=-math.inf, forced_blocks=2)
        out = make(pipe, config, ahead=ahead, guidance_scale=guidance)
        counts.append(len(calls))
        calls.clear()
        assert out.stats.wasted == 0
    assert counts[0] == counts[1] == 2 * 2 * (BLOCKS - 2)


def going_on() -> list:
    """A method and whether drafts are made ahead before a clip is interrupted, and behind it."""
    return [
        pytest.param(method, ahead, marks=() if method == "sdvg-adaptive" else pytest.mark.slow)
        for method in ("sdvg", "sdvg-adaptive", "random-routing")
        for ahead in ((True, True), (True, False), (False, True))
    ]


@pytest.mark.parametrize(("method", "ahead"), going_on())
def test_interrupted_clip_goes_on(pipe, tau, method, ahead, tmp_path):
    """From a file, with drafts made ahead before or behind it, or both."""
    config = at(dict(method=method), tau)
    whole = make(pipe, config, ahead=False)
    kept = []

    def stop(pipe, number, *rest) -> None:
        kept.append(pipe.snapshot())  # those that are looked at go on as well
        pipe.interrupt = number == 3

    begun = make(pipe, config, ahead=ahead[0], callback_on_step_end=stop)
    assert torch.equal(begun.frames, whole.frames[:, :6])
    for name, snapshot, done in (("end", pipe.snapshot(), 3), ("middle", kept[1], 2)):
        save_file(snapshot, tmp_path / name)
        rest = make(pipe, config, ahead=ahead[1], resume=load_file(tmp_path / name))
        assert torch.equal(rest.frames, whole.frames[:, 2 * done :])
        assert rest.made_by == [clip[done:] for clip in whole.made_by]
        assert rest.rewards == [clip[done:] for clip in whole.rewards]


def raising(monkeypatch, pipe, where) -> None:
    """A drafter that fails on blocks of which `where(number, in the main thread)` is true."""
    denoise = pipe.drafter.denoise

    def broken(noisy, timestep, cache, clean=None):
        waiting = 0 if clean is None else clean.shape[1] // noisy.shape[1]
        if where(cache.blocks + waiting, threading.current_thread() is MAIN):
            raise RuntimeError("out of memory")
        return denoise(noisy, timestep, cache, clean)

    monkeypatch.setattr(pipe.drafter, "denoise", broken)


def test_failure_is_that_of_a_drafter_that_does_not_draft_ahead(pipe, monkeypatch, caplog):
    raising(monkeypatch, pipe, lambda number, _: number >= 3)
    config = dict(method="sdvg", tau=-math.inf)
    on, off = (make(pipe, config, ahead=ahead) for ahead in (True, False))
    assert same(on, off)
    assert on.made_by == [["target", "drafter", "drafter", *["target"] * 3]] * 2
    assert on.stats.fault == "RuntimeError: out of memory"
    assert [r.message for r in caplog.records] == [caplog.records[0].message] * 2
    assert "the drafter failed" in caplog.text


def test_failure_ahead_is_a_failure(pipe, monkeypatch):
    """Of a block that is needed: decoding goes on without the drafter."""
    plain = make(pipe, dict(method="sdvg", tau=math.inf), ahead=False)
    raising(monkeypatch, pipe, lambda number, main: number == 3 and not main)
    out = make(pipe, dict(method="sdvg", tau=-math.inf))
    assert out.made_by == [["target", "drafter", "drafter", *["target"] * 3]] * 2
    assert out.stats.fault == "RuntimeError: out of memory"
    assert not any(name.startswith("drafter") for name in pipe.snapshot())
    fallen = make(pipe, dict(method="sdvg", tau=math.inf))
    assert fallen.stats.fault is None  # thrown away with its block
    assert torch.equal(fallen.frames, plain.frames)


def test_stopped_in_the_middle(pipe):
    """A reward that is interrupted, or a callback that raises: no thread is left behind."""

    def stop(*_):
        raise KeyboardInterrupt

    def stop_behind_drafts(_, block):
        if block.number == 2:
            stop()

    try:
        for reward, callback in ((Brightness(stop), None), (Brightness(), stop_behind_drafts)):
            pipe.reward = reward
            with pytest.raises(KeyboardInterrupt):
                make(pipe, dict(method="sdvg", tau=-math.inf), callback_on_block=callback)
    finally:
        pipe.reward = Brightness()


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_same_clips_on_a_gpu(tau, name):
    """There it is the default; judge and draft are on streams of their own."""
    pipe = tiny_pipeline().to("cuda")
    ours, denoise = set(), pipe.drafter.denoise

    def watched(*given):
        ours.add(torch.cuda.current_stream())
        return denoise(*given)

    pipe.drafter.denoise = watched
    pipe.reward = Brightness()
    config, call = CASES[name]
    found = {
        ahead: [make(pipe, at(config, tau), ahead=ahead, **call) for _ in range(3)]
        for ahead in (False, None, True)
    }
    wanted = found[False][0]
    assert all(same(out, wanted) for made in found.values() for out in made)
    assert len(ours) == (0 if name == "forced to the end" else 1 + 2 * 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("sdvg", None),
        ("sdvg[draft_ahead=true]", True),
        ("random-routing[draft_ahead=false]", False),
    ],
)
def test_setting_of_a_method(text, value):
    name, config = parse_method(text)
    assert name == text
    assert config.resolve("video").options["draft_ahead"] is value


def test_cpu_drafts_ahead_only_if_asked(pipe, tau, monkeypatch):
    threads, denoise = set(), pipe.drafter.denoise

    def watched(*given):
        threads.add(threading.current_thread() is MAIN)
        return denoise(*given)

    monkeypatch.setattr(pipe.drafter, "denoise", watched)
    for ahead, wanted in ((None, {True}), (False, {True}), (True, {True, False})):
        threads.clear()
        make(pipe, dict(method="sdvg", tau=-math.inf), ahead=ahead)
        assert threads == wanted


@pytest.mark.parametrize(
    ("knobs", "said"),
    [
        ({"method": "sdvg", "draft_ahead": 1}, "draft_ahead must be True, False or None, not 1"),
        ({"method": "draft", "draft_ahead": True}, "draft_ahead is a setting of"),
        ({"method": "plain", "draft_ahead": False}, "draft_ahead is a setting of"),
        (
            {"method": "drafter-only", "draft_ahead": True},
            "draft_ahead is a setting of",
        ),
    ],
)
def test_what_is_refused(knobs, said):
    with pytest.raises(InputError, match=said):
        SpecConfig(**knobs)
    with pytest.raises(InputError, match="must be true or false, or none"):
        parse_method("sdvg[draft_ahead=yes]")
