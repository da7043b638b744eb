"""The video pipeline: Diffusers' contract, streaming, routing, and clips that go on later."""

from __future__ import annotations

import copy
import gc
import json
import logging
import math
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.utils.rnn import pad_sequence
from wans import tiny_pipeline, tiny_wan

from mmspec import SpecConfig, VideoPipeline
from mmspec.errors import InputError
from mmspec.methods import serving
from mmspec.methods.parts.blocks import ROUTER_TAU
from mmspec.models.text_encoder import encode_prompt
from mmspec.models.wan.frame_router import FrameRouter
from mmspec.models.wan.vae import decode_block
from mmspec.models.wan.window import ContextWindow
from mmspec.pipelines.video import components
from mmspec.rewards.registry import load_reward
from mmspec.rewards.router import RouterReward

PROMPTS = ["a photo of a red circle", "two blue squares"]
METHODS = list(serving("video"))
REUSING = ("x-cache", "random-reuse")


class Brightness:
    """Judges a frame by its mean, whatever the prompt."""

    name = "brightness"

    def __init__(self, value: float | None = None) -> None:
        self.value = value
        self.asked: list[str] = []

    def score(self, prompts, images):
        self.asked += prompts
        found = images.float().mean((1, 2, 3))
        return found if self.value is None else torch.full_like(found, self.value)


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    made = tiny_pipeline()
    made.reward = Brightness()
    return made


@pytest.fixture(autouse=True)
def plainly(pipe):
    pipe.disable_speculation()


def seeds(*numbers: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(number) for number in numbers]


# weights that are read from a file lie otherwise in memory, which kernels may round by
NEAR = {"rtol": 1e-4, "atol": 1e-3}


def latents(pipe, prompt=PROMPTS[0], seed=(5,), **options) -> torch.Tensor:
    options = {"num_frames": 21, "num_inference_steps": 2, **options}
    return pipe(prompt, generator=seeds(*seed), output_type="latent", **options).frames


@pytest.fixture(scope="module")
def tau(pipe) -> float:
    """A threshold that the first draft of one of the clips of these tests reaches."""
    pipe.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    out = pipe(PROMPTS, generator=seeds(5, 6), num_frames=13, num_inference_steps=2)
    first, other = (min(clip[1]) for clip in out.rewards)
    assert abs(first - other) > 0.01
    return (first + other) / 2


@pytest.fixture(scope="module")
def some_tau(pipe, tau):
    """Configures a method so that it leaves blocks to both models, if it can."""
    pipe.enable_speculation(SpecConfig("arbitrage", advantage_tau=1.0))
    out = pipe(PROMPTS, generator=seeds(5, 6), num_frames=13, num_inference_steps=2)
    first, other = (clip[1][0] for clip in out.rewards)
    assert abs(first - other) > 1e-6
    knobs = {"sdvg": {"tau": tau}, "arbitrage": {"advantage_tau": (first + other) / 2}}
    return lambda method: SpecConfig(method, **knobs.get(method, {}))


def test_frames_in_every_form(pipe):
    one = pipe(PROMPTS[0], generator=seeds(1), num_inference_steps=2)
    assert [len(clip) for clip in one.frames] == [21]
    assert one.frames[0][0].size == (24, 16)
    forms = {
        form: pipe(
            PROMPTS, generator=seeds(1, 2), num_frames=13, num_inference_steps=2, output_type=form
        ).frames
        for form in ("pil", "np", "pt", "latent", "none")
    }
    assert forms["none"] is None
    assert forms["latent"].shape == (2, 4, 3, 4, 6)
    assert forms["pt"].shape == (2, 13, 3, 16, 24)
    with torch.no_grad():
        wanted = decode_block(pipe.vae, forms["latent"])[0] / 2 + 0.5
    assert torch.allclose(forms["pt"], wanted, atol=1e-5)
    assert wanted.std() > 1e-3
    assert np.allclose(forms["np"], forms["pt"].movedim(2, -1), atol=1e-6)
    pil = np.stack([np.stack([np.asarray(frame) for frame in clip]) for clip in forms["pil"]])
    assert np.abs(pil / 255 - forms["np"]).max() <= 0.51 / 255
    frames, stats = pipe(PROMPTS[0], num_frames=5, return_dict=False)
    assert (len(frames[0]), stats.method, stats.contract) == (5, "plain", "exact")
    forms["latent"] += 1  # a normal tensor


def test_saved_pipeline_makes_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "saved")
    again = VideoPipeline.from_pretrained(tmp_path / "saved")
    again.set_progress_bar_config(disable=True)
    assert again.drafter is not None
    assert torch.allclose(latents(again), latents(pipe), **NEAR)
    tiny_pipeline(drafter=False).save_pretrained(tmp_path / "alone")
    alone = VideoPipeline.from_pretrained(tmp_path / "alone")
    assert alone.drafter is None
    for method in ("sdvg", "drafter-only"):
        with pytest.raises(InputError, match="needs the component 'drafter'"):
            alone.enable_speculation(SpecConfig(method))


def test_released_text_encoder_is_found_by_its_config(pipe, tmp_path):
    from transformers import UMT5Config, UMT5EncoderModel

    small = dict(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2)
    encoder = UMT5EncoderModel(UMT5Config(vocab_size=len(pipe.tokenizer), **small)).eval()
    made = VideoPipeline(pipe.transformer, pipe.vae, encoder, pipe.tokenizer)
    made.save_pretrained(tmp_path)
    again = VideoPipeline.from_pretrained(tmp_path)
    again.set_progress_bar_config(disable=True)
    made.set_progress_bar_config(disable=True)
    assert isinstance(again.text_encoder, UMT5EncoderModel)
    assert torch.allclose(latents(again), latents(made), **NEAR)
    wan = dict(transformer=tmp_path / "transformer", parts=tmp_path)
    sizes = dict(num_frame_per_block=2, text_len=24, num_heads=2, window=2, sink=1)
    released = VideoPipeline.from_wan(**wan, **sizes)
    released.set_progress_bar_config(disable=True)
    same = dict(height=16, width=24)
    assert torch.allclose(latents(released, **same), latents(made, **same), **NEAR)


def test_files_of_self_forcing_make_clips(pipe, tmp_path):
    """Target and drafter as released, one file each; who makes what is as in the pipeline saved."""
    pipe.save_pretrained(tmp_path)
    for name in ("transformer", "drafter"):
        weights = pipe.components[name].state_dict()
        named = {f"model.{tensor}": value for tensor, value in weights.items()}
        torch.save({"generator": named}, tmp_path / f"{name}.pt")
    released = VideoPipeline.from_wan(
        tmp_path / "transformer.pt",
        tmp_path,
        tmp_path / "drafter.pt",
        **dict(num_frame_per_block=2, text_len=24, num_heads=2, window=2, sink=1),
    )
    released.set_progress_bar_config(disable=True)
    released.reward = pipe.reward
    call = dict(num_frames=13, height=16, width=24, num_inference_steps=2, output_type="pt")
    outs = []
    for made in (pipe, released):
        made.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
        outs.append(made(PROMPTS[0], generator=seeds(0), **call))
    ours, theirs = outs
    assert ours.made_by == theirs.made_by == [["target", "drafter"]]
    assert torch.allclose(ours.frames, theirs.frames, **NEAR)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ({"num_frames": 14}, "num_frames must be of whole blocks"),
        ({"height": 20}, "height must be a multiple of 8"),
        ({"num_inference_steps": 0}, "a whole number from 1, not 0"),
        ({"num_inference_steps": 2.5}, "num_inference_steps must be an integer or None, not 2.5"),
        ({"timesteps": (1000, 1000)}, "steps must fall from 1000"),
        ({"guidance_scale": -1}, "guidance_scale must be"),
    ],
)
def test_what_is_refused_is_refused_before_the_call_too(pipe, call, said):
    for refused in (pipe.check_call, lambda config, **call: pipe(PROMPTS[0], **call)):
        with pytest.raises(InputError, match=said):
            refused(SpecConfig("plain"), **call)
    with pytest.raises(InputError, match="num_frames must be an integer or None, not 'many'"):
        pipe.check_call(SpecConfig("plain"), num_frames="many")
    pipe.check_call(SpecConfig("sdvg", tau=0.0), num_frames=13, height=16)
    pipe.enable_speculation(SpecConfig("random-routing", draft_steps=3))
    for refused in (pipe.check_call, lambda config, **call: pipe(PROMPTS[0], **call)):
        with pytest.raises(InputError, match="draft_steps 3 is more than the target's 2"):
            refused(pipe.speculation, num_inference_steps=2)


@pytest.mark.parametrize("method", METHODS)
def test_methods(pipe, some_tau, method):
    pipe.enable_speculation(some_tau(method))
    out = pipe(PROMPTS, generator=seeds(5, 6), num_frames=45, num_inference_steps=2)
    makers = {maker for clip in out.made_by for maker in clip}
    undrafted = ("plain", *REUSING)
    wanted = {"drafter"} if method == "drafter-only" else {"drafter", "target"}
    assert makers == ({"target"} if method in undrafted else wanted)
    if method not in (*undrafted, "drafter-only"):
        assert {clip[0] for clip in out.made_by} == {"target"}
    stats = out.stats
    assert stats.contract == ("exact" if method == "plain" else "lossy")
    judged = [len(block) for clip in out.rewards for block in clip]
    asks = method not in (*undrafted, "drafter-only", "random-routing")
    assert judged == ([0] + [8] * 5) * 2 if asks else judged == [0] * 12
    parts = {"decode", "commit"}
    parts |= {"draft"} if "drafter" in makers else set()
    parts |= {"reward"} if asks else set()
    parts |= {"regenerate"} if "target" in makers else set()
    assert set(stats.parts) == parts
    assert (stats.nfe == 0) == (method == "drafter-only")
    ran, reused = sum(stats.layers), sum(stats.reused_layers)
    assert ran + reused == sum(stats.calls) * len(pipe.transformer.layers)
    assert (reused > 0) == (method in REUSING)
    drafted = [maker == "drafter" for clip in out.made_by for maker in clip]
    assert stats.as_dict()["drafted_share"] == sum(drafted) / 12
    assert len(stats.merged([stats]).made_by) == 4


def test_clip_alone_and_in_a_batch(pipe, tau):
    pipe.enable_speculation(SpecConfig("sdvg", tau=tau))
    both = latents(pipe, PROMPTS, (5, 6), num_frames=45)
    for row in range(2):
        assert torch.equal(latents(pipe, PROMPTS[row], (5 + row,), num_frames=45)[0], both[row])
    assert not torch.equal(latents(pipe, seed=(7,), num_frames=45)[0], both[0])


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_thresholds_at_the_ends(pipe, guidance):
    how = dict(prompt=PROMPTS, seed=(3, 4), guidance_scale=guidance)
    plain = latents(pipe, **how)
    pipe.enable_speculation(SpecConfig("drafter-only"))
    alone = latents(pipe, **how)
    found = {}
    for tau in (math.inf, -math.inf):
        for forced in (0, 1):
            pipe.enable_speculation(SpecConfig("sdvg", tau=tau, forced_blocks=forced))
            found[tau, forced] = latents(pipe, **how)
    assert torch.equal(found[math.inf, 0], plain)
    assert torch.equal(found[math.inf, 1], plain)
    assert torch.equal(found[-math.inf, 0], alone)
    assert torch.equal(found[-math.inf, 1][:, :2], plain[:, :2])
    assert not torch.allclose(found[-math.inf, 1][:, 2:], plain[:, 2:], atol=1e-2)


def test_arguments_matter(pipe):
    plain = latents(pipe)
    changed = [
        latents(pipe, PROMPTS[1]),
        latents(pipe, num_inference_steps=3),
        latents(pipe, timesteps=(1000, 300)),
        latents(pipe, shift=1.0),
        latents(pipe, guidance_scale=3.0),
        latents(pipe, window=ContextWindow(1)),
    ]
    assert all(not torch.allclose(other, plain, atol=1e-3) for other in changed)
    assert torch.equal(latents(pipe, timesteps=(1000, 500)), plain)
    guided = dict(guidance_scale=3.0)
    away = latents(pipe, negative_prompt=PROMPTS[0], **guided)
    assert torch.allclose(away, plain, atol=1e-3)  # guided away from itself


def test_the_pipelines_own_router_judges(pipe):
    own = VideoPipeline(**pipe.components)
    own.enable_speculation(SpecConfig("sdvg", tau=-math.inf, forced_blocks=0))
    out = own(PROMPTS, generator=seeds(5, 6), num_frames=21, output_type="pt")
    judge = RouterReward(own.router, own.tokenizer)
    for prompt, frames, rewards in zip(PROMPTS, out.frames, out.rewards, strict=True):
        shown = (frames * 255).round().to(torch.uint8)
        for number, (start, end) in enumerate(((0, 5), (5, 13), (13, 21))):
            before = shown[start - 1] if start else None
            wanted = judge.score_block(prompt, shown[start:end], before, number)
            assert torch.allclose(torch.tensor(rewards[number]), wanted, atol=1e-4)
    none = VideoPipeline(**{**pipe.components, "router": None})
    with pytest.raises(InputError, match="has no router: train one, or name a reward"):
        none.enable_speculation(SpecConfig("sdvg"))
    none.enable_speculation(SpecConfig("random-routing"))  # which asks nobody


def test_a_clip_that_goes_on_is_judged_as_if_it_never_stopped(pipe, tmp_path):
    """By the router, which looks at the last frame before a block."""
    own = VideoPipeline(**pipe.components)
    own.set_progress_bar_config(disable=True)
    own.enable_speculation(SpecConfig("sdvg-adaptive"))
    how = dict(num_inference_steps=1, output_type="pt")
    whole = own(PROMPTS, generator=seeds(5, 6), num_frames=37, **how)
    own(PROMPTS, generator=seeds(5, 6), num_frames=21, **how)
    save_file(own.snapshot(), tmp_path / "clips")
    rest = own(PROMPTS, resume=load_file(tmp_path / "clips"), num_frames=37, **how)
    assert rest.rewards == [clip[3:] for clip in whole.rewards]
    assert torch.equal(rest.frames, whole.frames[:, 21:])


def test_drafts_of_fewer_steps(pipe):
    """They start from the target's noise, and are what their model draws alone in as many steps."""
    parts = {**pipe.components, "transformer": pipe.drafter, "drafter": None}
    plain, alone = latents(pipe, num_inference_steps=3), VideoPipeline(**parts)
    drawn = latents(alone, num_inference_steps=1)
    pipe.enable_speculation(SpecConfig("sdvg", tau=math.inf, draft_steps=1))
    assert torch.equal(latents(pipe, num_inference_steps=3), plain)
    drafts = SpecConfig("sdvg", tau=-math.inf, forced_blocks=0, draft_steps=1)
    for config in (drafts, SpecConfig("drafter-only", draft_steps=1)):
        pipe.enable_speculation(config)
        assert torch.equal(latents(pipe, num_inference_steps=3), drawn)
    assert not torch.allclose(drawn, latents(alone, num_inference_steps=3), atol=1e-3)


def test_steps_are_those_that_a_model_was_made_for(pipe):
    def made_for(model, **changes):
        made = copy.deepcopy(model)
        made.register_to_config(**changes)
        return made

    target = made_for(pipe.transformer, sample_steps=3, sample_shift=2.0, sample_guidance=2.0)
    drafter = made_for(pipe.drafter, sample_steps=2)
    other = VideoPipeline(**{**pipe.components, "transformer": target, "drafter": drafter})
    asked = latents(pipe, num_inference_steps=3, shift=2.0, guidance_scale=2.0)
    assert torch.equal(latents(other, num_inference_steps=None), asked)
    other.enable_speculation(SpecConfig("drafter-only"))
    drawn = latents(other, num_inference_steps=None)
    other.enable_speculation(SpecConfig("drafter-only", draft_steps=2))
    assert torch.equal(latents(other, num_inference_steps=None), drawn)
    other.enable_speculation(SpecConfig("drafter-only", draft_steps=3))
    assert not torch.allclose(latents(other, num_inference_steps=None), drawn, atol=1e-3)
    unguided = made_for(drafter, sample_guidance=1.0)  # distilled from the guided one
    other = VideoPipeline(**{**pipe.components, "transformer": target, "drafter": unguided})
    other.enable_speculation(SpecConfig("drafter-only"))
    alone = VideoPipeline(**{**pipe.components, "transformer": unguided, "drafter": None})
    quick = latents(alone, num_inference_steps=None, shift=2.0)
    assert torch.equal(latents(other, num_inference_steps=None), quick)
    other.enable_speculation(SpecConfig("sdvg", tau=-math.inf, forced_blocks=0))
    assert torch.equal(latents(other, num_inference_steps=None), quick)
    assert not torch.allclose(drawn, quick, atol=1e-3)
    for part, method in (("transformer", "plain"), ("drafter", "drafter-only")):
        flow = made_for(pipe.components[part], sample_renoise=0.0)
        other = VideoPipeline(**{**pipe.components, part: flow})
        other.set_progress_bar_config(disable=True)
        for way in ("plain", "drafter-only"):
            other.enable_speculation(SpecConfig(way))
            pipe.enable_speculation(SpecConfig(way))
            same = torch.allclose(latents(other), latents(pipe), atol=1e-3)
            assert same == (way != method)


def test_blocks_stream(pipe, tau):
    pipe.enable_speculation(SpecConfig("sdvg", tau=tau))
    blocks, steps = [], []
    out = pipe(
        PROMPTS,
        generator=seeds(5, 6),
        num_frames=45,
        num_inference_steps=2,
        output_type="np",
        callback_on_block=lambda _, block: blocks.append(block),
        callback_on_step_end=lambda *given: steps.append(given),
        callback_on_step_end_tensor_inputs=["latents"],
    )
    assert [(b.number, b.row) for b in blocks] == [(n, row) for n in range(6) for row in range(2)]
    for row in range(2):
        own = [b for b in blocks if b.row == row]
        assert [b.made_by for b in own] == out.made_by[row]
        assert [b.rewards for b in own] == out.rewards[row]
        assert [b.made_by == "drafter" for b in own[1:]] == [min(b.rewards) >= tau for b in own[1:]]
        streamed = torch.cat([b.pictures for b in own]).movedim(1, -1).numpy()
        assert streamed.dtype == np.uint8
        assert np.abs(streamed / 255 - out.frames[row]).max() <= 0.51 / 255
    assert [(number, done) for _, number, done, _ in steps] == [(n, n) for n in range(1, 7)]
    assert torch.equal(steps[3][3]["latents"][1], blocks[7].latents)
    assert steps[3][3]["stats"] is out.stats


@pytest.mark.parametrize("method", ["plain", "random-routing"])
def test_frames_that_nobody_sees_are_not_decoded(pipe, method, monkeypatch):
    """But for a snapshot, which is the same."""
    pipe.enable_speculation(SpecConfig(method))
    how = dict(prompt=PROMPTS, num_frames=21, num_inference_steps=1)
    pipe(**how, generator=seeds(5, 6), output_type="pt")
    wanted, decoded = pipe.snapshot(), []

    def counted(*given):
        decoded.append(1)
        return decode_block(*given)

    monkeypatch.setattr("mmspec.models.wan.target.decode_block", counted)
    blocks = []
    pipe(
        **how,
        generator=seeds(5, 6),
        output_type="latent",
        callback_on_block=lambda _, block: blocks.append(len(block.frames)),
    )
    assert (blocks, len(decoded)) == ([5, 5, 8, 8, 8, 8], 6)
    decoded.clear()
    out = pipe(**how, generator=seeds(5, 6), output_type="latent")
    assert decoded == []
    assert "decode" not in out.stats.parts
    held = pipe.nbytes
    for _ in range(2):
        found = pipe.snapshot()
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[name], wanted[name]) for name in wanted)
        assert len(decoded) == 6
    assert pipe.nbytes != held
    assert out.stats.parts.keys() <= {"regenerate", "draft", "commit"}


def test_a_text_that_comes_again_is_encoded_once(pipe, monkeypatch):
    found, asked = [], []

    def counted(tokenizer, encoder, prompt, length):
        asked.append(prompt)
        return encode_prompt(tokenizer, encoder, prompt, length)

    monkeypatch.setattr("mmspec.pipelines.video.components.encode_prompt", counted)
    for untold in ("two", ["two", "two"]):
        found.append(latents(pipe, PROMPTS, (5, 6), negative_prompt=untold, guidance_scale=2.0))
    assert asked == [PROMPTS[0], "two", PROMPTS[1]] * 2
    assert torch.equal(*found)
    told = components.told(pipe.tokenizer, pipe.text_encoder, PROMPTS, ["two"] * 2, 24)
    each = [
        [encode_prompt(pipe.tokenizer, pipe.text_encoder, t, 24) for t in (p, "two")]
        for p in PROMPTS
    ]
    assert all(map(torch.equal, told, (pad_sequence(pair, batch_first=True) for pair in each)))


def test_several_clips_of_a_prompt(pipe):
    """As in a batch with each prompt so often."""
    how = dict(seed=(5, 6, 7, 8), guidance_scale=2.0)
    untold = dict(negative_prompt=["two", "red"])
    found = latents(pipe, PROMPTS, num_videos_per_prompt=2, **untold, **how)
    every = [prompt for prompt in PROMPTS for _ in range(2)]
    wanted = latents(pipe, every, negative_prompt=["two", "two", "red", "red"], **how)
    assert torch.equal(found, wanted)
    pipe.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    asked = len(pipe.reward.asked)
    pipe(PROMPTS, num_videos_per_prompt=2, num_frames=13, num_inference_steps=1)
    assert pipe.reward.asked[asked:] == [prompt for prompt in every for _ in range(8)]


@pytest.mark.parametrize("method", [name for name in METHODS if name != "drafter-only"])
def test_interrupted_clip_goes_on(pipe, some_tau, method, tmp_path):
    """From a file, to the last bit."""
    pipe.enable_speculation(some_tau(method))
    how = dict(num_inference_steps=2, output_type="pt", num_frames=45)
    whole = pipe(PROMPTS, generator=seeds(5, 6), **how)

    def stop(pipe, number, done, tensors) -> None:
        pipe.interrupt = number == 3

    begun = pipe(PROMPTS, generator=seeds(5, 6), callback_on_step_end=stop, **how)
    assert torch.equal(begun.frames, whole.frames[:, :21])
    save_file(pipe.snapshot(), tmp_path / "clip.safetensors")
    pipe(PROMPTS[0], generator=seeds(1), num_frames=5)  # something else in between
    rest = pipe(PROMPTS, resume=load_file(tmp_path / "clip.safetensors"), **how)
    assert torch.equal(rest.frames, whole.frames[:, 21:])
    assert rest.made_by == [clip[3:] for clip in whole.made_by]
    assert rest.rewards == [clip[3:] for clip in whole.rewards]


def test_finished_clip_grows_under_a_global_window(pipe):
    """Its cache had no more room; the one that it goes on in has."""
    how = dict(num_inference_steps=1, output_type="latent", window=ContextWindow())
    whole = pipe(PROMPTS[0], generator=seeds(3), num_frames=45, **how)
    pipe(PROMPTS[0], generator=seeds(3), num_frames=13, **how)
    rest = pipe(PROMPTS[0], resume=pipe.snapshot(), num_frames=45, **how)
    assert torch.equal(rest.frames, whole.frames[:, 4:])


def test_what_can_not_go_on(pipe):
    pipe(PROMPTS[0], num_frames=13, num_inference_steps=2)
    kept = pipe.snapshot()
    steps = "the snapshot is of clips of another steps: [1000.0, 500.0], not [1000.0]"
    later = dict(num_frames=21, num_inference_steps=2)
    for wrong, word in (
        (dict(num_frames=13), "the clips have 13 frames already"),
        (dict(prompt=PROMPTS), "resume goes on with 1 clips and their seeds"),
        (dict(generator=seeds(1)), "resume goes on with 1 clips and their seeds"),
        (dict(height=32), "the snapshot is of another cache"),
        (dict(num_inference_steps=1), re.escape(steps)),
        (dict(shift=2.0), "of clips of another shift: 5.0, not 2.0"),
        (dict(guidance_scale=2.0), "of clips of another guidance: 1.0, not 2.0"),
        (dict(window=ContextWindow(2)), r"of another window: \[2, 1\], not \[2, 0\]"),
        (dict(resume={"a": torch.ones(1)}), r"resume takes what pipe.snapshot\(\) gave"),
    ):
        with pytest.raises(InputError, match=word):
            pipe(**{"prompt": PROMPTS[0], "resume": kept, **later, **wrong})
    other = VideoPipeline(**{**pipe.components, "transformer": copy.deepcopy(pipe.transformer)})
    other.set_progress_bar_config(disable=True)
    assert len(other(PROMPTS[0], resume=kept, **later).frames[0]) == 8
    torch.nn.init.zeros_(other.transformer.head.head.weight)
    with pytest.raises(InputError, match="the snapshot is of clips of another model: "):
        other(PROMPTS[0], resume=kept, **later)
    pipe.enable_speculation(SpecConfig("random-routing"))
    with pytest.raises(InputError, match="the snapshot has no cache of the drafter"):
        pipe(PROMPTS[0], resume=kept, **later)
    pipe(PROMPTS[0], **later)
    pipe.enable_speculation(SpecConfig("random-routing", draft_steps=1))
    with pytest.raises(InputError, match=re.escape(steps)):
        pipe(PROMPTS[0], resume=pipe.snapshot(), num_frames=29, num_inference_steps=2)
    with pytest.raises(InputError, match="there are no clips to go on with"):
        tiny_pipeline().snapshot()


def test_what_broke_off_within_a_block_does_not_go_on(pipe, monkeypatch):
    """In a callback all clips are whole; in the second step of a block the first has read ahead."""

    def refuse(_, block) -> None:
        if block.number == 1:
            raise KeyboardInterrupt

    asked = dict(num_frames=21, num_inference_steps=2, output_type="latent", generator=seeds(5))
    with pytest.raises(KeyboardInterrupt):
        pipe(PROMPTS[0], **asked, callback_on_block=refuse)
    assert int(pipe.snapshot()["blocks"]) == 2
    denoise, steps = pipe.transformer.denoise, []

    def broken(*given, **named):
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt
        return denoise(*given, **named)

    monkeypatch.setattr(pipe.transformer, "denoise", broken)
    with pytest.raises(KeyboardInterrupt):
        pipe(PROMPTS[0], **asked)
    with pytest.raises(InputError, match="broke off within a block"):
        pipe.snapshot()


@pytest.mark.parametrize(("last", "frames"), [(1, 0), (3, 5)])
@pytest.mark.parametrize("output_type", ["pil", "pt"])
def test_interrupted_within_a_block(pipe, monkeypatch, last, frames, output_type):
    """As from another thread: no further step is taken, what stands is there, and no more."""
    denoise, steps = pipe.transformer.denoise, []

    def stopped(*given, **named):
        steps.append(1)
        if len(steps) == last:
            pipe.interrupt = True
        return denoise(*given, **named)

    asked = dict(num_frames=21, num_inference_steps=2, output_type=output_type)
    whole = pipe(PROMPTS[0], generator=seeds(5), **asked)
    monkeypatch.setattr(pipe.transformer, "denoise", stopped)
    begun = pipe(PROMPTS[0], generator=seeds(5), **asked)
    assert len(steps) == last
    assert [len(clip) for clip in begun.frames] == [frames]
    assert [len(clip) for clip in begun.made_by] == [last // 2]
    with pytest.raises(InputError, match="broke off within a block"):
        pipe.snapshot()
    again = pipe(PROMPTS[0], generator=seeds(5), **asked)
    assert again.made_by == whole.made_by
    for clip, wanted, short in zip(again.frames, whole.frames, begun.frames, strict=True):
        assert all(map(np.array_equal, clip, wanted))
        assert all(map(np.array_equal, clip, short))


def living() -> int:
    """Bytes of all tensors that somebody holds."""
    gc.collect()
    found = [x for x in gc.get_objects() if type(x) in (torch.Tensor, torch.nn.Parameter)]
    stored = [x for x in found if torch._C._has_storage(x)]
    return sum({x.data_ptr(): x.untyped_storage().nbytes() for x in stored}.values())


def test_long_clip_takes_no_more_memory(pipe):
    """Tens of blocks: no tensor is held for more than those that wait to be written."""
    pipe.enable_speculation(SpecConfig("random-routing", draft_share=0.8))
    held, made, kept = {}, [], {}

    def on_block(_, block) -> None:
        made.append(len(block.frames))
        if block.number in (20, 80):
            held[block.number] = living()
            kept[block.number] = sum(tensor.nbytes for tensor in pipe.snapshot().values())

    out = pipe(
        PROMPTS[0],
        num_frames=8 * 81 - 3,
        num_inference_steps=1,
        output_type="none",
        callback_on_block=on_block,
    )
    assert made == [5] + [8] * 80
    assert out.frames is None
    waiting = 2 * 16 * 2 * 3 * 4 * 6 * 4  # of two models, in float32
    assert abs(held[80] - held[20]) <= waiting < held[20] / 10
    assert abs(kept[80] - kept[20]) <= waiting
    assert pipe.nbytes > kept[80] / 2
    with pytest.raises(InputError, match="global window"):
        pipe.transformer.start(torch.zeros(1, 4, 16), 4, 6, window=ContextWindow())


def test_failing_reward_is_said(pipe, caplog):
    plain = latents(pipe)
    pipe.reward = Brightness(math.nan)
    pipe.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    with caplog.at_level(logging.WARNING):
        out = pipe(PROMPTS[0], generator=seeds(5), num_inference_steps=2, output_type="latent")
    pipe.reward = Brightness()
    assert torch.equal(out.frames, plain)
    assert (out.stats.unjudged, out.stats.reason) == (2, "it is no number")
    assert out.stats.as_dict()["rewards"] == [[[], [None] * 8, [None] * 8]]
    assert "reward brightness failed" in caplog.text


def test_drafter_that_fails_is_left_alone(monkeypatch, caplog):
    """In the middle of a clip: it goes on plainly, and says so."""
    pipe = tiny_pipeline()
    pipe.reward = Brightness()
    pipe.enable_speculation(SpecConfig("sdvg", tau=math.inf))
    plain = latents(pipe, num_frames=29)
    denoise, calls = pipe.drafter.denoise, []

    def broken(*given):
        calls.append(given)
        if len(calls) == 4:
            raise RuntimeError("out of memory")
        return denoise(*given)

    monkeypatch.setattr(pipe.drafter, "denoise", broken)
    out = pipe(
        PROMPTS[0],
        generator=seeds(5),
        num_frames=29,
        num_inference_steps=2,
        output_type="latent",
    )
    assert torch.equal(out.frames, plain)
    assert len(calls) == 4
    assert [len(rewards) for rewards in out.rewards[0]] == [0, 8, 0, 0]
    assert out.stats.fault == "RuntimeError: out of memory"
    assert "the drafter failed" in caplog.text
    assert not any(name.startswith("drafter") for name in pipe.snapshot())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    pipe = tiny_pipeline(dtype)
    pipe.reward = Brightness()
    pipe.enable_speculation(SpecConfig("sdvg", tau=0))
    out = pipe(PROMPTS[0], generator=seeds(5), num_inference_steps=1, output_type="pt")
    assert out.made_by == [["target", "drafter", "drafter"]]
    assert out.frames.dtype == torch.float32
    assert out.frames.isfinite().all()


def test_reward_reads_its_own_prompt(pipe):
    pipe.reward = Brightness()
    pipe.enable_speculation(SpecConfig("sdvg", tau=0.0))
    pipe(PROMPTS, num_frames=13, num_inference_steps=1)
    assert pipe.reward.asked == [PROMPTS[0]] * 8 + [PROMPTS[1]] * 8


def test_a_config_names_the_reward():
    """The pipeline's own router if it does not, or one of the package's."""
    pipe, found = tiny_pipeline(), []
    for knobs in ({}, {"reward": "router"}, {"reward": "shapes_clip_score", "tau": 25.0}):
        pipe.enable_speculation(SpecConfig("sdvg", **knobs))
        out = pipe(PROMPTS[0], generator=seeds(5), num_frames=13, num_inference_steps=1)
        found.append(out.rewards[0][1])
    assert len(found[0]) == 8
    assert found[0] == found[1] != found[2]
    pipe.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    drafted = pipe(PROMPTS[0], generator=seeds(5), num_frames=13, num_inference_steps=1)
    judge = load_reward("shapes_clip_score")
    wanted = judge.score([PROMPTS[0]] * 8, drafted.frames[0][5:])
    assert torch.allclose(torch.tensor(found[2]), wanted, atol=0.05)
    with pytest.raises(InputError, match="unknown reward 'hpsv3'; did you mean 'hpsv2'"):
        pipe.enable_speculation(SpecConfig("sdvg", reward="hpsv3"))


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (dict(num_frames=14), "such as 13 or 21, not 14"),
        (dict(num_frames=3), "such as 5, not 3"),
        (dict(num_frames=0), "such as 5, not 0"),
        (dict(height=20), "height must be a multiple of 8 pixels, not 20"),
        (dict(width=0), "width must be a multiple of 8 pixels, not 0"),
        (dict(output_type="gif"), "output_type must be pil, np, pt, latent or none, not 'gif'"),
        (dict(num_inference_steps=0), "a whole number from 1, not 0"),
        (dict(timesteps=(1000, 1000)), "steps must fall from 1000"),
        (dict(num_inference_steps=1001), "made in at most 1000 steps, not 1001"),
        (dict(timesteps=[1000 - n / 2 for n in range(1500)]), "at most 1000 steps, not 1500"),
        (dict(shift=0), "shift must be above 0"),
        (dict(guidance_scale=-1), "guidance_scale must be from 0"),
        (dict(guidance_scale=0), "1 switches guidance off"),
        (dict(prompt=" "), "the prompt is empty"),
        (dict(num_videos_per_prompt=0), "num_videos_per_prompt must be from 1 to 1024, not 0"),
        (dict(callback_on_step_end_tensor_inputs=["noise"]), "'latents' alone, not 'noise'"),
        (dict(generator=seeds(1, 2)), "2 generators for 1 samples"),
        (dict(negative_prompt=["a", "b"], guidance_scale=2), "2 negative prompts for 1 prompts"),
    ],
)
def test_wrong_calls(pipe, call, word):
    with pytest.raises(InputError, match=word):
        pipe(**{"prompt": PROMPTS[0], **call})


@pytest.mark.parametrize(
    ("knobs", "word"),
    [
        (dict(method="draft"), "method 'draft' is for a model that draws pictures"),
        (
            dict(method="plain", drafter="lookup"),
            "are blocks of video; use 'block-video'",
        ),
        (
            dict(method="sdvg", rule="token"),
            "judges token ids, and the tokens of a model",
        ),
        (
            dict(method="sdvg", length="heuristic"),
            "has no figures for what drafter",
        ),
        (dict(method="sdvg", tau=math.nan), "tau must be a number, not nan"),
        (dict(method="sdvg", frame_rule="best"), "unknown frame_rule 'best'"),
        (dict(method="sdvg", forced_blocks=-1), "forced_blocks must be an integer from 0"),
        (dict(method="random-routing", draft_share=2), "draft_share must be from 0 to 1"),
        (dict(method="drafter-only", tau=3.0), "tau is a setting of 'reward-threshold', and"),
        (dict(method="plain", tau=3.0), "method 'plain' does not read it; leave it out"),
        (dict(method="sdvg-adaptive", tau=3.0), "tau is a setting of 'reward-threshold', and"),
        (
            dict(method="sdvg", draft_share=0.3),
            "'reward-rank' or 'random-routing' or 'step-random', and",
        ),
        (dict(method="random-routing", reward="image_reward"), "reward is a setting of"),
        (dict(method="random-routing", frame_rule="mean"), "frame_rule is a setting of"),
        (dict(method="drafter-only", forced_blocks=2), "forced_blocks is a setting of"),
        (dict(method="plain", draft_steps=2), "'masked-rows' or 'drafter-only', and"),
    ],
)
def test_wrong_configurations(pipe, knobs, word):
    with pytest.raises(InputError, match=word):
        pipe.enable_speculation(SpecConfig(**knobs))


def test_a_threshold_is_on_the_rewards_scale(pipe):
    """Decibels, the router's, are no ImageReward; what a reward of one's own has nobody knows."""
    own = VideoPipeline(**pipe.components)
    for knobs, word in (
        (dict(tau=-300.0), "tau -300 is no threshold for reward 'router'"),
        (dict(reward="shapes_clip_score", tau=-0.7), "whose scale is from 0 to 100; give a tau on"),
        (dict(reward="shapes_clip_score"), "no tau is usual .*scale is from 0 to 100; give a tau"),
    ):
        with pytest.raises(InputError, match=word):
            own.enable_speculation(SpecConfig("sdvg", **knobs))
    own.enable_speculation(SpecConfig("sdvg", tau=-math.inf))
    own.enable_speculation(SpecConfig("sdvg"))
    own.reward = Brightness()
    with pytest.raises(InputError, match="no tau is usual for reward 'brightness'; give a tau"):
        own(PROMPTS[0])
    own.enable_speculation(SpecConfig("sdvg", tau=250.0))
    own.reward.name = "image_reward"
    own.enable_speculation(SpecConfig("sdvg", tau=-0.7))
    for knobs, word in (
        (dict(tau=25.0), "tau 25 is no threshold for reward 'image_reward'"),
        (dict(), "no tau is usual for reward 'image_reward', whose scale is from -5 to 5"),
    ):
        with pytest.raises(InputError, match=word):
            own.enable_speculation(SpecConfig("sdvg", **knobs))
    own.enable_speculation(SpecConfig("sdvg-adaptive"))


def test_the_usual_threshold_is_the_routers(pipe):
    own = VideoPipeline(**pipe.components)
    own.set_progress_bar_config(disable=True)
    seen = []
    own.on_engine = lambda engine: seen.append(engine.rule.tau)
    for config in (SpecConfig("sdvg"), SpecConfig("sdvg", tau=30.0)):
        own.enable_speculation(config)
        own(PROMPTS[0], num_frames=5, num_inference_steps=1)
    assert seen == [ROUTER_TAU, 30.0]


@pytest.mark.parametrize("method", ["sdvg", "sdvg-adaptive"])
def test_a_published_reward_is_the_users_to_load(pipe, method):
    """Nobody knows where its weights are, and a call would be too late to say so."""
    own = VideoPipeline(**pipe.components)
    config = SpecConfig(method, reward="image_reward", **{"tau": -0.7} if method == "sdvg" else {})
    said = r"set pipe\.reward = .*load_reward\('image_reward', PATH\), where PATH is a folder with"
    with pytest.raises(InputError, match=said):
        own.enable_speculation(config)
    own.reward = Brightness()
    own.enable_speculation(config)


def test_a_named_reward_is_where_the_pipeline_is(monkeypatch):
    """Loaded once, and anew if the pipeline has moved."""
    pipe, loaded = tiny_pipeline(), []

    def load(name, weights=None, device="cpu"):
        loaded.append((name, device))
        return Brightness()

    monkeypatch.setattr("mmspec.pipelines.video.pipeline.load_reward", load)
    pipe.enable_speculation(SpecConfig("sdvg", reward="shapes_clip_score", tau=0.0))
    for device in ("cpu", "cpu", "meta"):
        monkeypatch.setattr(VideoPipeline, "device", torch.device(device))
        pipe(PROMPTS[0], num_frames=13, num_inference_steps=1)
    assert loaded == [("shapes_clip_score", "cpu"), ("shapes_clip_score", "meta")]


def test_models_that_are_not_block_causal(pipe, tmp_path):
    """Wan2.1 as it was released, in either layout."""
    pipe.save_pretrained(tmp_path)
    index = tmp_path / "model_index.json"
    told = json.loads(index.read_text())
    index.write_text(json.dumps(told | {"_class_name": "WanPipeline"}))
    with pytest.raises(
        InputError, match=r"is a model of WanPipeline, .* needs a block-causal model"
    ):
        VideoPipeline.from_pretrained(tmp_path)
    config = tmp_path / "transformer" / "config.json"
    told = json.loads(config.read_text())
    for kind in ("WanModel", "WanTransformer3DModel"):
        config.write_text(json.dumps(told | {"_class_name": kind}))
        for models in ({}, {"drafter": tmp_path / "transformer"}):
            target = tmp_path / ("drafter" if models else "transformer")
            with pytest.raises(InputError, match=f"transformer holds a {kind}, whose frames all"):
                VideoPipeline.from_wan(target, tmp_path, num_heads=2, text_len=24, **models)


def test_routing_is_for_video_alone():
    with pytest.raises(InputError, match="drafts blocks of video, and the tokens of a model that"):
        SpecConfig("draft", drafter="block-video", rule="random-routing")
    with pytest.raises(InputError, match="judges blocks of video, and the tokens of a model that"):
        SpecConfig("plain", rule="reward-rank").resolve("image")
    with pytest.raises(InputError, match="method 'sdvg' is for a model that makes videos"):
        SpecConfig("sdvg").resolve("continuous")


def test_parts_that_do_not_fit(pipe):
    parts = dict(pipe.components)
    for change, word in (
        (dict(transformer=tiny_wan(text_dim=16)), "latents have 3 channels, the target reads 4"),
        (dict(transformer=tiny_wan(in_dim=3)), "features have 16 channels, the target reads 10"),
        (
            dict(drafter=tiny_wan(in_dim=3, text_dim=16, num_frame_per_block=3)),
            r"the drafter's num_frame_per_block \(3\) is not the target's \(2\)",
        ),
        (
            dict(drafter=tiny_wan(in_dim=3, text_dim=16, text_len=9)),
            r"the drafter's text_len \(9\) is not the target's \(24\)",
        ),
        (dict(router=FrameRouter(7, widths=(8,))), "the router knows 7 words, the tokenizer has"),
    ):
        with pytest.raises(InputError, match=word):
            VideoPipeline(**{**parts, **change})
