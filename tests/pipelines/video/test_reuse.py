"""Cross-block caching in clips: x-cache, its sceptic, and blocks of a routed target."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from wans import tiny_pipeline

from mmspec import SpecConfig, VideoPipeline
from mmspec.cli.main import main
from mmspec.errors import InputError
from mmspec.methods import config_of
from mmspec.methods.parts.reuse import ChanceReuseOptions, NearReuseOptions
from mmspec.models.wan.reuse import distance

PROMPTS = ["a photo of a red circle", "two blue squares"]
BLOCKS, STEPS, LAYERS = 4, 3, 2
FRAMES = 5 + 8 * (BLOCKS - 1)
ALL = 1e9  # a distance above all


class Brightness:
    """Judges a frame by its mean."""

    name = "brightness"

    def score(self, prompts, images):
        return images.float().mean((1, 2, 3))


@pytest.fixture(scope="module")
def pipe() -> VideoPipeline:
    return tiny_pipeline(torch.float64)


def made(pipe, method, prompt=PROMPTS, seeds=(5, 6), frames=FRAMES, steps=STEPS, **call):
    config = config_of(method) if isinstance(method, str) else method
    pipe.enable_speculation(config)
    if seeds is not None:
        call["generator"] = [torch.Generator().manual_seed(seed) for seed in seeds]
    call |= dict(num_frames=frames, num_inference_steps=steps, output_type="latent")
    return pipe(prompt, **call)


def of(*reused: int) -> list[int]:
    """Layers of two clips that are spared if so many of a clip's blocks reuse all that they may."""
    return [blocks * (STEPS - 1) * LAYERS for blocks in reused]


@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_threshold_0_is_plain(pipe, guidance):
    plain = made(pipe, "plain", guidance_scale=guidance)
    assert plain.stats.reused_layers == [0, 0]
    assert plain.stats.layers == [LAYERS * calls for calls in plain.stats.calls]
    for method in ("x-cache[reuse_threshold=0]", "random-reuse[reuse_share=0]"):
        out = made(pipe, method, guidance_scale=guidance)
        assert torch.allclose(out.frames, plain.frames, atol=1e-9)
        assert (out.stats.contract, out.stats.reused_share) == ("exact", 0)
        assert out.stats.layers == plain.stats.layers
    for method in ("x-cache", "random-reuse"):
        assert SpecConfig(method).resolve("video").contract == "lossy"


def test_layers_that_are_spared_do_not_run(pipe, monkeypatch):
    ran = []
    for layer in pipe.transformer.layers:
        forward = layer.forward
        counted = lambda *given, f=forward: (ran.append(1), f(*given))[1]  # noqa: E731
        monkeypatch.setattr(layer, "forward", counted)
    out = made(pipe, SpecConfig("x-cache", reuse_threshold=ALL))
    stats = out.stats
    assert stats.reused_layers == of(2, 2)  # the second and the fourth block
    assert stats.calls == [BLOCKS * STEPS] * 2
    assert sum(stats.layers) == len(ran) == sum(stats.calls) * LAYERS - sum(stats.reused_layers)
    assert stats.as_dict()["reused_share"] == stats.reused_share == 8 / (BLOCKS * STEPS * LAYERS)
    assert stats.of_sample(1)["reused_share"] == stats.reused_share
    assert stats.merged([stats]).reused_layers == of(2, 2, 2, 2)
    plain = made(pipe, "plain")
    assert torch.allclose(out.frames[:, :2], plain.frames[:, :2], atol=1e-9)  # the first block
    assert not torch.allclose(out.frames[:, 2:4], plain.frames[:, 2:4], atol=1e-3)
    ever = made(pipe, SpecConfig("x-cache", reuse_threshold=ALL, reuse_blocks=9))
    assert ever.stats.reused_layers == of(3, 3)
    group = made(pipe, SpecConfig("x-cache", reuse_threshold=ALL, reuse_layers=9))
    assert group.stats.reused_layers == of(2, 2)
    assert torch.allclose(group.frames, out.frames, atol=1e-9)


def test_a_threshold_between_reuses_some(pipe, monkeypatch):
    seen = []

    def watched(x, known):
        seen.append(float(distance(x, known)))
        return torch.tensor(torch.inf)

    monkeypatch.setattr("mmspec.models.wan.reuse.distance", watched)
    made(pipe, SpecConfig("x-cache"))
    monkeypatch.undo()
    middle = sorted(seen)[len(seen) // 2]
    some = made(pipe, SpecConfig("x-cache", reuse_threshold=middle)).stats.reused_share
    every = made(pipe, SpecConfig("x-cache", reuse_threshold=ALL)).stats.reused_share
    assert 0 < some < every


@pytest.mark.parametrize("method", ["x-cache", "random-reuse"])
def test_clip_alone_and_in_a_batch(pipe, method):
    config = SpecConfig(method, reuse_blocks=2)
    both = made(pipe, config)
    for row, seed in enumerate((5, 6)):
        alone = made(pipe, config, PROMPTS[row], (seed,))
        assert torch.allclose(alone.frames[0], both.frames[row], atol=1e-9)
        assert alone.stats.reused_layers == both.stats.reused_layers[row : row + 1]
    assert made(pipe, config).stats.reused_layers == both.stats.reused_layers


def test_chance_reuses_as_often_as_it_is_told(pipe):
    shares = [
        made(pipe, SpecConfig("random-reuse", reuse_share=share)).stats.reused_share
        for share in (0.2, 0.6, 1.0)
    ]
    assert shares == sorted(set(shares))
    assert shares[-1] == made(pipe, SpecConfig("x-cache", reuse_threshold=ALL)).stats.reused_share


def test_new_clips_and_another_prompt_have_nothing_to_reuse(pipe, tmp_path):
    config = SpecConfig("x-cache", reuse_threshold=ALL)
    assert made(pipe, config, frames=5).stats.reused_layers == of(0, 0)  # whatever came before
    begun = made(pipe, config, PROMPTS[0], (5,), frames=5)
    save_file(pipe.snapshot(), tmp_path / "clip")
    how = dict(frames=13, seeds=None, resume=load_file(tmp_path / "clip"))
    assert made(pipe, config, PROMPTS[0], **how).stats.reused_layers == of(1)
    assert made(pipe, config, PROMPTS[1], **how).stats.reused_layers == of(0)
    whole = made(pipe, config, PROMPTS[0], (5,), frames=13)
    rest = made(pipe, config, PROMPTS[0], **how)
    assert torch.allclose(torch.cat([begun.frames, rest.frames], 1), whole.frames, atol=1e-9)
    made(pipe, "plain", PROMPTS[0], (5,), frames=5)
    how["resume"] = pipe.snapshot()
    assert made(pipe, config, PROMPTS[0], **how).stats.reused_layers == of(0)


def test_what_is_kept_does_not_grow_with_the_clip(pipe):
    config, sizes = SpecConfig("x-cache"), []
    seen = dict(callback_on_block=lambda *_: None)  # so that no block waits to be decoded
    for frames in (FRAMES, 2 * FRAMES + 3):
        made(pipe, config, frames=frames, **seen)
        sizes.append(pipe.nbytes)
    assert sizes[0] == sizes[1]
    made(pipe, "plain", **seen)
    assert sizes[0] > pipe.nbytes


def test_a_routed_target_reuses_what_it_made_itself(pipe):
    """Residuals of its own blocks; those of the drafter leave nothing, and age what it has."""
    every = SpecConfig("random-routing", draft_share=0.0, reuse_threshold=ALL)
    own, cached = made(pipe, every), made(pipe, SpecConfig("x-cache", reuse_threshold=ALL))
    assert torch.allclose(own.frames, cached.frames, atol=1e-9)
    assert own.stats.reused_layers == cached.stats.reused_layers == of(2, 2)
    drafts = made(pipe, every.replace(draft_share=1.0))
    assert drafts.stats.reused_layers == of(0, 0)
    some = made(pipe, every.replace(draft_share=0.5), frames=5 + 8 * 11)
    ages = [_ages(makers) for makers in some.made_by]
    assert some.stats.reused_layers == of(*ages)
    assert sum(ages) > 0
    assert some.stats.contract == "lossy"
    none = SpecConfig("random-routing", draft_share=0.5)
    same = made(pipe, none.replace(reuse_threshold=0.0))
    assert torch.allclose(made(pipe, none).frames, same.frames, atol=1e-9)


def _ages(makers: list[str]) -> int:
    """Blocks of the target's behind one that it computed, where it was the last."""
    reused, computed = 0, None
    for number, maker in enumerate(makers):
        if maker == "target":
            near = computed is not None and number - computed <= 1
            reused, computed = (reused + 1, computed) if near else (reused, number)
    return reused


def test_an_oracle_counts_blocks_that_fell(pipe):
    """Every draft stands; the target makes a block each time, and reuses what it made before."""
    judging = VideoPipeline(**pipe.components)
    judging.set_progress_bar_config(disable=True)
    judging.reward = Brightness()
    bound = SpecConfig("oracle-routing", gain_tau=ALL, reuse_threshold=ALL)
    out = made(judging, bound, PROMPTS[0], (5,))
    assert out.made_by == [["target", *["drafter"] * (BLOCKS - 1)]]
    assert out.stats.reused_layers == of(2)
    assert out.stats.layers == [LAYERS * out.stats.calls[0] - out.stats.reused_layers[0]]


def test_released_files_reuse_as_saved_ones(pipe, tmp_path):
    """Self-Forcing's file and Wan's folder, by `from_wan`."""
    small = tiny_pipeline()
    small.save_pretrained(tmp_path)
    weights = {f"model.{n}": v for n, v in small.transformer.state_dict().items()}
    torch.save({"generator_ema": weights}, tmp_path / "self_forcing_dmd.pt")
    sizes = dict(num_frame_per_block=2, text_len=24, num_heads=2, window=2, sink=1)
    released = VideoPipeline.from_wan(tmp_path / "self_forcing_dmd.pt", tmp_path, **sizes)
    released.set_progress_bar_config(disable=True)
    config = SpecConfig("x-cache", reuse_blocks=3)
    outs = [made(one, config, height=16, width=24) for one in (small, released)]
    assert outs[0].stats.reused_layers == outs[1].stats.reused_layers
    assert sum(outs[0].stats.reused_layers) > 0
    assert torch.allclose(outs[0].frames, outs[1].frames, atol=1e-5)


def test_what_does_not_go_together(pipe):
    for config in (SpecConfig("x-cache"), SpecConfig("random-routing", reuse_threshold=0.5)):
        with pytest.raises(InputError, match="a block's first step reuses nothing, and there is"):
            pipe.check_call(config, num_inference_steps=1)
        with pytest.raises(InputError, match="a block's first step reuses nothing, and there is"):
            made(pipe, config, steps=1)
    made(pipe, SpecConfig("x-cache", reuse_threshold=0.0), steps=1, frames=5)
    with pytest.raises(InputError, match="target_speedup is over plain generation, which makes"):
        pipe.enable_speculation(
            SpecConfig("sdvg-adaptive", target_speedup=1.5, reuse_threshold=0.5)
        )
    for method, knobs, word in (
        ("drafter-only", dict(reuse_threshold=0.5), "setting of 'block-video' or 'x-cache', and"),
        ("plain", dict(reuse_layers=2), "reuse_layers is a setting of"),
        ("x-cache", dict(reuse_share=0.5), "reuse_share is a setting of 'random-reuse', and"),
        ("x-cache", dict(reuse_threshold=-1), "reuse_threshold must be a number of 0 or more|of 0"),
        ("x-cache", dict(reuse_blocks=0), "reuse_blocks must be an integer from 1 to 1024"),
    ):
        with pytest.raises(InputError, match=word):
            SpecConfig(method, **knobs)
    with pytest.raises(InputError, match="'x-cache' is for a model that makes videos"):
        SpecConfig("x-cache").resolve("image")


def test_options_say_when_they_change_the_output():
    assert not NearReuseOptions().approximates()
    assert NearReuseOptions(reuse_threshold=0.1).approximates()
    assert ChanceReuseOptions().approximates()
    assert not ChanceReuseOptions(reuse_share=0.0).approximates()


def test_on_the_command_line(pipe, tmp_path, capsys):
    tiny_pipeline().save_pretrained(tmp_path / "model")
    words = ["video", PROMPTS[0], "-o", str(tmp_path / "out"), "--model", str(tmp_path / "model")]
    words += ["--method", "x-cache[reuse_threshold=1000]", "--blocks", "2", "--steps", "2"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "=1000]: 0% of the blocks drafted, 25% of the layers reused; " in out
