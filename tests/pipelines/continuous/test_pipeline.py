"""The continuous image pipeline: Diffusers' contract, counters, what a row depends on."""

from __future__ import annotations

from copy import deepcopy

import numpy as np
import pytest
import torch
from mars import captioned_pipeline, seeds, tiny_mar, tiny_vae

from mmspec import ContinuousImagePipeline, SpecConfig
from mmspec.errors import InputError
from mmspec.models.mar.autoencoder import decode_tokens

PROMPTS = ["a photo of a red circle", "a photo of two blue stars"]


@pytest.fixture(scope="module")
def pipe() -> ContinuousImagePipeline:
    """Told captions; 4×4 tokens of 4 numbers, 16 px, random weights."""
    return captioned_pipeline()


@pytest.fixture(scope="module")
def class_pipe() -> ContinuousImagePipeline:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        made = ContinuousImagePipeline(tiny_mar(condition="class", class_num=5), tiny_vae())
    made.set_progress_bar_config(disable=True)
    return made


FEW = dict(num_iterations=5, diffusion_steps=6)


def test_pictures_in_every_form(pipe):
    out = pipe(PROMPTS[0], **FEW)
    assert [image.size for image in out.images] == [(16, 16)]
    images, stats = pipe(
        PROMPTS, num_images_per_prompt=2, output_type="np", return_dict=False, **FEW
    )
    assert images.shape == (4, 16, 16, 3)
    assert 0 <= images.min() < images.max() <= 1
    assert stats.pictures == 4
    same = dict(generator=seeds(3)[0], **FEW)
    tokens = pipe(PROMPTS[0], output_type="latent", **same).images
    pixels = pipe(PROMPTS[0], output_type="pt", **{**same, "generator": seeds(3)[0]}).images
    assert tokens.shape == (1, 16, 4)
    with torch.no_grad():
        wanted = decode_tokens(pipe.vae, tokens).clamp(-1, 1) / 2 + 0.5
    assert torch.allclose(pixels, wanted, atol=1e-5)
    tokens += 1  # a normal tensor


def double(pipe: ContinuousImagePipeline) -> ContinuousImagePipeline:
    """A copy in float64: latents of random weights reach 1e4."""
    made = ContinuousImagePipeline(**deepcopy(pipe.components)).to(torch.float64)
    made.set_progress_bar_config(disable=True)
    return made


def near_draws(*pipes, generator, **call) -> bool:
    """Whether pipelines of the same weights draw the same."""
    drawn = [
        double(pipe)(generator=seeds(*generator), output_type="latent", **call, **FEW).images
        for pipe in pipes
    ]
    return torch.allclose(*drawn, rtol=1e-9, atol=1e-6)


def test_saved_pipeline_draws_the_same(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "saved")
    again = ContinuousImagePipeline.from_pretrained(tmp_path / "saved")
    again.set_progress_bar_config(disable=True)
    assert set(again.components) == set(pipe.components)
    for part in ("transformer", "drafter", "text_encoder", "vae"):
        ours, theirs = (p.components[part].state_dict().values() for p in (pipe, again))
        assert all(map(torch.equal, ours, theirs))
    assert near_draws(pipe, again, prompt=PROMPTS, generator=(1, 2))


def test_saved_pipeline_of_classes(class_pipe, tmp_path):
    class_pipe.save_pretrained(tmp_path / "saved")
    again = ContinuousImagePipeline.from_pretrained(tmp_path / "saved")
    assert (again.text_encoder, again.tokenizer, again.drafter) == (None, None, None)
    again.set_progress_bar_config(disable=True)
    assert near_draws(class_pipe, again, class_labels=3, generator=(1,))


def test_same_seed_alone_and_in_a_batch():
    pipe = captioned_pipeline().to(torch.float64)  # latents of random weights reach 1e4
    batch = pipe(PROMPTS, generator=seeds(7, 8), output_type="latent", **FEW).images
    for row, seed in enumerate((7, 8)):
        alone = pipe(PROMPTS[row], generator=seeds(seed), output_type="latent", **FEW).images
        assert torch.allclose(batch[row], alone[0], atol=1e-3)
    other = pipe(PROMPTS[0], generator=seeds(9), output_type="latent", **FEW).images
    assert not torch.allclose(other[0], batch[0], atol=0.1)


def test_guidance_and_what_is_told_matter(pipe):
    pipe = double(pipe)

    def draw(prompt=PROMPTS[0], **options):
        options = {**FEW, "generator": seeds(4), "output_type": "latent", **options}
        return pipe(prompt, **options).images

    plain = draw()
    changed = [
        draw(guidance_scale=1),
        draw(guidance_scale=5.0),
        draw(guidance_schedule="constant"),
        draw(temperature=0.5),
        draw(prompt=PROMPTS[1]),
        draw(negative_prompt=PROMPTS[1]),
        draw(diffusion_steps=(6, 3)),
        draw(num_iterations=4),
    ]
    for other in changed:
        assert not torch.allclose(other, plain, atol=1e-3)
    pipe.transformer.register_to_config(sample_guidance=5.0, sample_temperature=0.5)
    assert torch.allclose(draw(guidance_scale=3.0, temperature=1.0), plain, atol=1e-6)
    both = draw(guidance_scale=5.0, temperature=0.5)
    assert torch.allclose(draw(), both, atol=1e-6)  # the model's own
    same = draw(guidance_scale=2.0, negative_prompt=PROMPTS[0], guidance_schedule="constant")
    alone = draw(guidance_scale=1)
    assert torch.allclose(same, alone, atol=1e-6)  # guided away from itself


def test_calls_are_counted_apart(pipe):
    stats = pipe(PROMPTS, num_iterations=5, diffusion_steps=(9, 5)).stats
    assert (stats.method, stats.contract, stats.pictures) == ("plain", "exact", 2)
    assert (stats.backbone_calls, stats.backbone_rows) == (5, 5 * 2 * 2)
    drawn = [16 - 15, 15 - 12, 12 - 9, 9 - 4, 4]  # ⌊16 cos(π/2 · k/5)⌋
    steps = [9, 8, 7, 6, 5]
    assert stats.head_calls == stats.alone == stats.scored == sum(steps)
    rows = [count * step * 2 for count, step in zip(drawn, steps, strict=True)]
    assert stats.head_rows == 2 * sum(rows)
    assert len(stats.calls) == 2 * 16
    assert stats.nfe == pytest.approx(sum(rows) / 2 / 16)
    assert stats.mean_acceptance_length == 1
    assert (sum(stats.drafted), sum(stats.accepted), stats.drafter_head_calls) == (0, 0, 0)
    assert set(stats.seconds) == {"encode", "backbone", "target", "decode"}
    assert stats.loop_seconds == stats.seconds["backbone"] + stats.seconds["target"]
    both = stats.merged([pipe(PROMPTS[0], guidance_scale=1, **FEW).stats])
    assert (both.pictures, both.backbone_calls, both.head_calls) == (3, 10, sum(steps) + 30)
    assert both.head_rows == stats.head_rows + 16 * 6
    assert both.as_dict()["backbone_rows"] == 20 + 5


def test_default_is_one_token_an_iteration(pipe):
    stats = pipe(PROMPTS[0], diffusion_steps=2).stats
    assert (stats.backbone_calls, stats.head_calls) == (16, 32)


def test_callback_and_interrupt(pipe):
    seen = []

    def stop(pipe, iteration, tokens, state):
        seen.append((iteration, tokens, int(state["latents"].any(-1).sum())))
        pipe.interrupt = iteration == 3

    options = dict(generator=seeds(5), output_type="latent")
    told = dict(callback_on_step_end=stop, callback_on_step_end_tensor_inputs=["latents"])
    part = pipe(PROMPTS[0], **told, **FEW, **options).images
    assert seen == [(1, 1, 1), (2, 4, 4), (3, 7, 7)]
    whole = pipe(PROMPTS[0], **FEW, **{**options, "generator": seeds(5)}).images
    known = part[0].any(-1)
    assert int(known.sum()) == 7
    assert torch.equal(part[0, known], whole[0, known])
    assert whole[0].any(-1).all()


def test_what_a_callback_is_given_is_its_own(pipe):
    """What it keeps stays, and what it edits nobody reads."""
    kept = []

    def keep(pipe, iteration, tokens, state):
        kept.append(state["latents"])

    def edit(pipe, iteration, tokens, state):
        for name in ("latents", "positions", "drafted"):
            state[name].zero_()

    how = dict(output_type="latent", **FEW)
    whole, *others = (
        pipe(PROMPTS[0], generator=seeds(5), callback_on_step_end=callback, **how).images
        for callback in (None, keep, edit)
    )
    assert all(torch.equal(other, whole) for other in others)
    assert [int(latents.any(-1).sum()) for latents in kept] == [1, 4, 7, 12, 16]


def test_weights_that_change_are_read_again(pipe):
    options = dict(output_type="latent", **FEW)
    before = pipe(PROMPTS[0], generator=seeds(2), **options).images
    bias = pipe.transformer.head.final_layer.linear.bias
    kept = bias.detach().clone()
    with torch.no_grad():
        bias += 0.5
        changed = pipe(PROMPTS[0], generator=seeds(2), **options).images
        bias.copy_(kept)
    again = pipe(PROMPTS[0], generator=seeds(2), **options).images
    # these are large numbers, of random weights
    assert (changed - before).norm() > 1e-2 * before.norm() > 100 * (again - before).norm()


def test_half_precision_and_double(pipe, tmp_path):
    pipe.save_pretrained(tmp_path / "saved")
    drawn = {}
    for dtype in (torch.bfloat16, torch.float32, torch.float64):
        again = ContinuousImagePipeline.from_pretrained(tmp_path / "saved", dtype=dtype)
        again.set_progress_bar_config(disable=True)
        out = again(PROMPTS[0], generator=seeds(6), output_type="latent", **FEW).images
        assert out.dtype == dtype
        drawn[dtype] = out.double()
    assert torch.allclose(drawn[torch.float32], drawn[torch.float64], atol=1e-2)
    assert drawn[torch.bfloat16].isfinite().all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(prompt=""), "the prompt is empty"),
        (dict(prompt=["a star", 5]), "prompt must be text, a list of texts or None, not a list of"),
        (dict(prompt=5), "prompt must be text, a list of texts or None, not 5"),
        (dict(), "told captions: give prompt"),
        (dict(prompt="a star", class_labels=1), "told captions: give prompt"),
        (dict(prompt="a star", height=32), r"this model draws 16×16 px, not 32×None"),
        (dict(prompt="a star", output_type="gif"), "output_type must be pil, np, pt or latent"),
        (dict(prompt="a star", num_iterations=17), "iterations must be from 1 to 16, not 17"),
        (
            dict(prompt="a star", num_iterations=2.5),
            "num_iterations must be an integer or None",
        ),
        (dict(prompt="a star", diffusion_steps=1001), "diffusion_steps must be from 2 to 1000"),
        (dict(prompt="a star", diffusion_steps=(9,)), "an integer or a list of 2 integers, not"),
        (dict(prompt="a star", diffusion_steps=(9, "5")), "not a tuple of int and str"),
        (
            dict(prompt="a star", temperature="warm"),
            "temperature must be a number or None, not 'warm'",
        ),
        (dict(prompt="a star", guidance_scale=-1), "guidance_scale must be from 0"),
        (dict(prompt="a star", guidance_scale=0), "1 switches guidance off"),
        (
            dict(prompt="a star", guidance_schedule="cosine"),
            "must be linear or constant, not 'cosine'",
        ),
        (dict(prompt="a star", num_images_per_prompt=0), "num_images_per_prompt must be"),
        (
            dict(prompt="a star", callback_on_step_end_tensor_inputs=["noise"]),
            "'latents' alone, not 'noise'",
        ),
        (dict(prompt="a star", num_images_per_prompt=1.5), "num_images_per_prompt must be"),
        (dict(prompt=["a star"], negative_prompt=["a", "b"]), "2 negative prompts for 1 prompts"),
        (dict(prompt="a star", generator=[]), "0 generators for 1 samples"),
    ],
)
def test_arguments_out_of_range(pipe, options, message):
    with pytest.raises(InputError, match=message):
        pipe(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(prompt="a star"), "told classes, numbers from 0 to 4, not 'a star'"),
        (dict(prompt="2", class_labels=2), "from 0 to 4: give class_labels, or numbers as prompt"),
        (dict(class_labels="cat"), "not 'cat'"),
        (dict(class_labels=1.5), "not 1.5"),
        (dict(class_labels=[0, 5]), r"from 0 to 4, not \[0, 5\]"),
        (dict(class_labels=[]), r"from 0 to 4, not \[\]"),
        (dict(class_labels=1, negative_prompt="a star"), "it has no negative_prompt"),
    ],
)
def test_arguments_of_classes(class_pipe, options, message):
    with pytest.raises(InputError, match=message):
        class_pipe(**options)


@pytest.mark.parametrize("told", [np.int64(2), torch.tensor(2), torch.tensor([2]), (2,)])
def test_classes_as_any_kind_of_integer(class_pipe, told):
    call = dict(output_type="latent", **FEW)
    same = class_pipe(class_labels=2, generator=seeds(1), **call).images
    assert torch.equal(class_pipe(class_labels=told, generator=seeds(1), **call).images, same)
    assert torch.equal(class_pipe("2", generator=seeds(1), **call).images, same)


def test_parts_that_do_not_fit(pipe):
    with pytest.raises(InputError, match="latents have 4 channels, the target reads 6"):
        ContinuousImagePipeline(tiny_mar(token_dim=6), pipe.vae, pipe.text_encoder, pipe.tokenizer)
    with pytest.raises(InputError, match="needs a text encoder and a tokenizer"):
        ContinuousImagePipeline(pipe.transformer, pipe.vae)
    with pytest.raises(InputError, match="features have 32 channels, the target reads 24"):
        ContinuousImagePipeline(
            tiny_mar(caption_dim=24), pipe.vae, pipe.text_encoder, pipe.tokenizer
        )
    with pytest.raises(InputError, match=r"the drafter's grid \(3\) is not the target's \(4\)"):
        ContinuousImagePipeline(
            pipe.transformer, pipe.vae, pipe.text_encoder, pipe.tokenizer, tiny_mar(grid=3)
        )


def test_methods_of_other_modalities_are_refused(pipe):
    with pytest.raises(InputError, match="'sjd' is for a model that draws pictures"):
        pipe.enable_speculation(SpecConfig(method="sjd"))
    pipe.enable_speculation(SpecConfig(method="plain"))
    assert np.asarray(pipe(PROMPTS[0], **FEW).images[0]).shape == (16, 16, 3)
