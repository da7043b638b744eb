"""Habits of transformers' and Diffusers' users, on every pipeline: they work, or one line helps."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import texts
import torch
from answering import model, processor
from mars import captioned_pipeline
from torch import nn
from wans import tiny_pipeline

from mmspec import (
    ImagePipeline,
    InputError,
    TextPipeline,
    VlmPipeline,
    disable_speculation,
    enable_speculation,
)
from mmspec.pipelines.habits import ARGUMENTS, METHODS, MOVES, OPTIONS
from mmspec.pipelines.verdict.verdict import SpeculativeVerdict

NAMES = ("image", "continuous", "video", "vlm", "text")
SLICES = {"enable_vae_slicing", "disable_vae_slicing"}
WITHOUT = ("safety_checker", "requires_safety_checker", "trust_remote_code")
DTYPES = {
    "half": torch.float16,
    "bfloat16": torch.bfloat16,
    "double": torch.float64,
    "float": torch.float32,
}


@pytest.fixture(scope="module")
def pipes(tiny_folder) -> dict[str, Any]:
    words = texts.tokenizer()
    return {
        "image": ImagePipeline.from_pretrained(tiny_folder),
        "continuous": captioned_pipeline(),
        "video": tiny_pipeline(),
        "vlm": VlmPipeline(model(2, 0), processor()),
        "text": TextPipeline(texts.model(words), words),
    }


@pytest.fixture(scope="module")
def folders(pipes, tmp_path_factory) -> dict[str, Any]:
    home = tmp_path_factory.mktemp("saved")
    for name, pipe in pipes.items():
        pipe.save_pretrained(home / name)
    return {name: home / name for name in pipes}


def verdict() -> SpeculativeVerdict:
    class Expert:
        name, tokens = "one", 0

    return SpeculativeVerdict([Expert()], Expert())


def line(function, *args, **kwargs) -> str:
    """The one line of the error that a call raises."""
    with pytest.raises(InputError) as caught:
        function(*args, **kwargs)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def weights(pipe) -> list[torch.Tensor]:
    parts = [part for part in pipe.components.values() if isinstance(part, nn.Module)]
    return [weight for part in parts for weight in part.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_moves_and_casts_work(pipes, name):
    pipe = pipes[name]
    before = pipe.dtype
    for cast, dtype in DTYPES.items():
        assert getattr(pipe, cast)() is pipe
        assert pipe.dtype == dtype
        assert {weight.dtype for weight in weights(pipe)} == {dtype}
    assert pipe.cpu() is pipe
    assert pipe.device == torch.device("cpu")
    if not torch.cuda.is_available():
        for where in ((), (0,), ("cuda:0",), (torch.device("cuda"),)):
            assert "can't be used" in line(pipe.cuda, *where)
    main = next(part for part in pipe.components.values() if isinstance(part, nn.Module))
    main.train()
    assert pipe.eval() is pipe
    assert not main.training
    assert pipe.requires_grad_(False) is pipe
    assert not any(weight.requires_grad for weight in weights(pipe))
    pipe.set_progress_bar_config(disable=True)
    pipe.requires_grad_(True).to(before)


@pytest.mark.parametrize("name", NAMES)
def test_methods_that_are_refused_say_what_to_write(pipes, name):
    kind = type(pipes[name]).__name__
    for method in METHODS:
        if name in ("image", "continuous") and method in SLICES:
            continue
        assert line(getattr(pipes[name], method), 1, more=2).startswith(f"{kind} takes no {method}")
    assert "pipe(prompt" in line(pipes[name].generate, "a red circle")
    assert line(type(pipes[name]).from_single_file, "a.ckpt").startswith(f"{kind} takes no from_")


def test_pictures_decoded_one_by_one_are_the_same(pipes):
    pipe = pipes["continuous"]
    call = dict(prompt=["a red circle", "a blue square"], num_iterations=2, diffusion_steps=2)
    call |= dict(output_type="pt", generator=torch.Generator().manual_seed(0))
    whole = pipe(**call).images
    pipe.enable_vae_slicing()
    sizes: list[int] = []
    hook = pipe.vae.decoder.register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
    call["generator"].manual_seed(0)
    try:
        assert torch.allclose(pipe(**call).images, whole, atol=1e-5)
    finally:
        hook.remove()
        pipe.disable_vae_slicing()
    assert sizes == [1, 1]


def test_pictures_of_tokens_are_decoded_a_few_at_a_time(pipes):
    pipe = pipes["image"]
    call = dict(prompt="a red circle", num_images_per_prompt=9, height=16, output_type="pt")
    sizes, drawn = [], []
    hook = pipe.vq_model.decoder.register_forward_pre_hook(lambda _, x: sizes.append(len(x[0])))
    for slices in (pipe.disable_vae_slicing, pipe.enable_vae_slicing, pipe.disable_vae_slicing):
        slices()
        drawn.append(pipe(**call, generator=torch.Generator().manual_seed(0)).images)
    hook.remove()
    assert sizes == [8, 1, *[1] * 9, 8, 1]
    assert torch.allclose(drawn[1], drawn[0], atol=1e-5)
    assert torch.equal(drawn[2], drawn[0])


@pytest.mark.parametrize("name", NAMES)
def test_callbacks_interrupt_as_those_of_diffusers(pipes, name):
    few = dict(continuous=dict(num_iterations=3, diffusion_steps=2), video=dict(num_frames=13))
    few |= {key: dict(max_new_tokens=6) for key in ("vlm", "text")}
    rounds = []

    def stop(pipe, number, *_) -> None:
        rounds.append(number)
        pipe._interrupt = True

    pipes[name]("a red circle", callback_on_step_end=stop, **few.get(name, {}))
    assert rounds == [1]
    assert pipes[name].interrupt
    assert pipes[name]._interrupt


@pytest.mark.parametrize("name", NAMES)
def test_arguments_of_a_call_that_are_refused_say_what_to_do(pipes, name, tmp_path):
    pipe = pipes[name]
    taken = inspect.signature(type(pipe).__call__).parameters
    known = type(pipe).instead.keys()
    assert known >= ARGUMENTS.keys()
    for argument in known - set(taken) - {"push_to_hub", "safe_serialization"}:
        said = line(pipe, "a red circle", **{argument: 1})
        assert said.startswith(f"{type(pipe).__name__} takes no {argument}: ")
    assert "hf upload" in line(pipe.save_pretrained, tmp_path / "one", push_to_hub=True)
    assert "always" in line(pipe.save_pretrained, tmp_path / "one", safe_serialization=True)
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("name", ["text", "vlm"])
def test_what_generate_takes_is_given_to_generate(pipes, name):
    """As the errors say; the pipeline answers on as before."""
    pipe, asked = pipes[name], dict(max_new_tokens=6)
    before = pipe("a red circle", **asked).tokens
    assert "mmspec.enable_speculation(pipe.model)" in line(
        pipe, "a red circle", logits_processor=[]
    )
    ids = torch.tensor([[9, 8, 7]])  # no place for a picture
    first = int(pipe.model.generate(ids, **asked, do_sample=False)[0, 3])
    enable_speculation(pipe.model, "prompt-lookup")
    try:
        more = dict(suppress_tokens=[first], do_sample=False)
        ours = pipe.model.generate(ids, **asked, **more)
        assert pipe.model.speculation_stats.method == "prompt-lookup"
        assert pipe("a red circle", **asked).tokens == before
    finally:
        disable_speculation(pipe.model)
    assert first not in ours[0, 3:]
    assert torch.equal(ours, pipe.model.generate(ids, **asked, **more))


@pytest.mark.parametrize("name", NAMES)
def test_options_of_loading(pipes, folders, name):
    load, folder = type(pipes[name]).from_pretrained, folders[name]
    for option in OPTIONS.keys() - pipes[name].components.keys():
        assert line(load, folder, **{option: True}).startswith(f"from_pretrained takes no {option}")
    taken = dict(torch_dtype=torch.float64, use_safetensors=True, local_files_only=True)
    taken |= dict(variant=None, revision=None, token=None, low_cpu_mem_usage=True)
    pipe = load(folder, **taken, **dict.fromkeys(WITHOUT))
    assert pipe.dtype == torch.float64
    assert "trust_remote_code" not in str(load(folder, trust_remote_code=False).config)
    assert "takes no scheduler" in line(load, folder, scheduler=None)


def test_a_verdict_says_who_has_the_weights():
    made = verdict()
    for habit in (*METHODS, *MOVES, "enable_speculation", "disable_speculation"):
        assert line(getattr(made, habit), 1).startswith(f"SpeculativeVerdict takes no {habit}: ")
    for attribute in ("device", "dtype"):
        assert "each of them" in line(getattr, made, attribute)
    assert "give them to the class" in line(SpeculativeVerdict.from_pretrained, "folder")
    for argument in SpeculativeVerdict.instead:
        assert f"takes no {argument}: " in line(made, None, "how many?", **{argument: "x"})
