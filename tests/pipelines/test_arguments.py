"""What users' calls can't be: one line for every argument, in every pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from answering import model, processor
from mars import captioned_pipeline
from transformers import LlamaConfig, LlamaForCausalLM
from wans import tiny_pipeline

import mmspec
from mmspec import ImagePipeline, InputError, VlmPipeline
from mmspec.pipelines.arguments import check_value, checked
from mmspec.pipelines.verdict.verdict import SpeculativeVerdict

NAMES = ("image", "continuous", "video", "vlm")
CHAT = [{"role": "user", "content": [{"type": "text", "text": "a red circle"}]}]


@pytest.fixture(scope="module")
def pipes(tiny_folder) -> dict[str, Any]:
    return {
        "image": ImagePipeline.from_pretrained(tiny_folder),
        "continuous": captioned_pipeline(),
        "video": tiny_pipeline(),
        "vlm": VlmPipeline(model(2, 0), processor()),
    }


@pytest.fixture(scope="module")
def llama():
    sizes = dict(hidden_size=8, intermediate_size=8, num_attention_heads=2, vocab_size=12)
    return LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **sizes)).eval()


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (dict(prompt=None), "prompt"),
        (dict(prompt=5), "prompt must be text.*, not 5"),
        (dict(prompt=["a", 5]), "prompt must be text.*, not a list of str and int"),
        (dict(prompt=""), "is empty"),
        (dict(prompt=[]), "is empty"),
        (dict(prompt=["a", " "]), "is empty"),
        (dict(generator=3), r"generator must be a Generator, a list of Generators or None, not 3"),
        (dict(generator=[3]), "generator must be .*, not a list of int"),
        (dict(callback_on_step_end=3), "callback_on_step_end must be a function or None, not 3"),
        (dict(return_dict="no"), "return_dict must be True or False, not 'no'"),
        (dict(prompt_embeds=torch.zeros(1, 2, 3)), "takes no prompt_embeds: .*; give prompt"),
        (dict(negative_prompt_embeds=None), "takes no negative_prompt_embeds"),
        (dict(latents=torch.zeros(2)), "takes no latents: .*; give generator"),
        (dict(returndict=True), "unknown argument 'returndict'; did you mean 'return_dict'"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", NAMES)
def test_every_pipeline_says_it_in_one_line(pipes, name, call, said):
    with pytest.raises(InputError, match=said) as caught:
        pipes[name](**{"prompt": "a red circle", **call})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "call", "said"),
    [
        ("image", dict(num_inference_steps=9), "takes no num_inference_steps: .*; leave it out"),
        ("continuous", dict(num_inference_steps=9), "give num_iterations.* or diffusion_steps"),
        ("vlm", dict(num_inference_steps=9), "num_inference_steps: .*; give max_new_tokens"),
        ("video", dict(num_inference_steps=0), "a whole number from 1, not 0"),
        ("video", dict(num_inference_steps="9"), "num_inference_steps must be an integer or None"),
        *(
            (name, dict(callback_on_step_end_tensor_inputs=["latents"]), "`context` and `stats`")
            for name in ("image", "vlm")
        ),
        *(
            (name, dict(callback_on_step_end_tensor_inputs=["noise"]), "'latents' alone")
            for name in ("continuous", "video")
        ),
        *(
            (name, dict(prompt=CHAT), "not chat messages, which a vision-language pipeline takes")
            for name in ("image", "continuous", "video")
        ),
        *(
            (name, dict(height="tall"), "height must be an integer or None, not 'tall'")
            for name in ("image", "continuous", "video")
        ),
        ("image", dict(guidance_scale="3"), "guidance_scale must be a number or None, not '3'"),
        ("image", dict(top_k=2.5), "top_k must be an integer or None, not 2.5"),
        ("image", dict(top_p=True), "top_p must be a number, not True"),
        ("image", dict(output_type="gif"), "output_type must be pil, np, pt or tokens, not 'gif'"),
        ("image", dict(negative_prompt=3), "negative_prompt must be text, a list of texts or None"),
        ("continuous", dict(class_labels="x"), "class_labels must be an integer"),
        ("video", dict(timesteps=3), "timesteps must be a list of numbers or None, not 3"),
        ("video", dict(window=3), "window must be a ContextWindow or None, not 3"),
        ("vlm", dict(stop=3), "stop must be text, a list of texts or None, not 3"),
        ("vlm", dict(max_new_tokens=None), "max_new_tokens must be an integer, not None"),
        ("vlm", dict(images=None), "takes no images: give image"),
        ("vlm", dict(do_sample=True), "takes no do_sample: give temperature"),
        ("vlm", dict(max_length=9), "takes no max_length: give max_new_tokens"),
        ("vlm", dict(image="https://example.org/a.png"), "not fetched from the web; give a file"),
        ("vlm", dict(image=3), "image must be an Image, text, a Path, bytes, a ndarray, a tensor,"),
        ("vlm", dict(prompt=b"a"), "prompt must be text, .*, not bytes"),
        ("vlm", dict(negative_prompt="b"), "an answer has no guidance; leave it out"),
        ("image", dict(seed=3), "takes no seed: give generator=torch.Generator"),
    ],
    ids=str,
)
def test_of_one_pipeline(pipes, name, call, said):
    with pytest.raises(InputError, match=said) as caught:
        pipes[name](**{"prompt": "a red circle", **call})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", NAMES)
def test_devices_and_dtypes_that_can_not_be(pipes, name):
    for where, said in (
        (("toaster",), "device 'toaster' can't be used"),
        (("cuda:99",), "device 'cuda:99' can't be used"),
        ((torch.int8,), "dtype must be one of floats"),
        (("cpu", "bfloat61"), "dtype must be one of floats.*not 'bfloat61'"),
        ((1, 2, 3, 4), "too many positional arguments"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            pipes[name].to(*where)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400  # torch goes on for two thousand
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="device 'cuda' can't be used"):
            pipes[name].to("cuda")
    with pytest.raises(InputError, match="unknown argument 'devise'; did you mean 'device'"):
        pipes[name].to(devise="cpu")


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_a_configuration(pipes, name):
    pipe = pipes[name]
    method, knob = {"video": ("random-routing", "draft_share"), "vlm": ("scd", "window")}.get(
        name, ("scd", "window") if name == "image" else ("reflection", "num_draft_tokens")
    )
    pipe.enable_speculation(method)
    assert pipe.speculation.method == method
    pipe.enable_speculation(f"{method}[{knob}=1]")
    assert pipe.speculation.options[knob] == 1
    pipe.disable_speculation()
    for wrong, said in (
        (f"{method}d", f"did you mean '{method}'"),
        (f"{method}[{knob}x=1]", f"did you mean '{knob}'"),
        (3, "config must be a SpecConfig, text or None, not 3"),
    ):
        with pytest.raises(InputError, match=said):
            pipe.enable_speculation(wrong)
    for given, said in (
        (dict(wrong=1), r"unknown argument 'wrong'.*\(known: config\)"),
        (dict(confg=method), "did you mean 'config'"),
        ({knob: 1}, rf"that is a setting .* SpecConfig\('METHOD', {knob}=…\) or 'METHOD\["),
        ({f"{knob}s": 1}, f"unknown argument '{knob}s'; '{knob}' is a setting of a method"),
        (dict(rule="token"), "'rule'; that is a setting of a method: give it in config, as"),
    ):
        with pytest.raises(InputError, match=said) as caught:
            pipe.enable_speculation(**given)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="unknown argument 'now'"):
        pipe.disable_speculation(now=True)
    with pytest.raises(InputError, match="config must be a SpecConfig, not 'scd'"):
        pipe.check_speculation("scd")
    with pytest.raises(InputError, match="unknown argument 'disabled'; did you mean 'disable'"):
        pipe.set_progress_bar_config(disabled=True)
    assert pipe.speculation.method == "plain"


def test_text(llama):
    mmspec.enable_speculation(llama, "prompt-lookup[num_draft_tokens=2]")
    ids = torch.tensor([[3, 4, 5]])
    try:
        for call, said in (
            (dict(inputs="a red circle"), "inputs must be a tensor or None, not 'a red circle'"),
            (dict(inputs=CHAT), "inputs must be a tensor or None, not chat messages"),
            (dict(input_ids=[[3, 4]]), "input_ids must be a tensor or None, not a list of list"),
            (dict(inputs=ids, generator=3), "generator"),
            (dict(inputs=ids, drafter_inputs=3), "drafter_inputs must be a Mapping or None, not 3"),
            (dict(inputs=torch.zeros(1, 0, dtype=torch.long)), "the prompt is empty"),
        ):
            with pytest.raises(InputError, match=said) as caught:
                llama.generate(**call, max_new_tokens=2)
            assert "\n" not in str(caught.value)
        assert llama.generate(ids, max_new_tokens=2, min_new_tokens=2).shape == (1, 5)
    finally:
        mmspec.disable_speculation(llama)
    for arguments, said in (
        ((llama, 3), "config must be a SpecConfig, text or None, not 3"),
        ((llama, "draftt"), "did you mean 'draft'"),
        ((llama, "draft", "small"), "drafter must be a PreTrainedModel or None, not 'small'"),
        (
            (llama, None, None, "eagle"),
            "head must be a PublishedHead or None, not 'eagle'",
        ),
        (("gpt", None), "model must be a PreTrainedModel, not 'gpt'"),
    ):
        with pytest.raises(InputError, match=said):
            mmspec.enable_speculation(*arguments)
    with pytest.raises(InputError, match="model must be a PreTrainedModel, not 'gpt'"):
        mmspec.disable_speculation("gpt")
    for given, said in (
        (dict(window=3), "'window'; that is a setting of a method: give it in config"),
        (dict(draftr=llama), "did you mean 'drafter'"),
    ):
        with pytest.raises(InputError, match=said):
            mmspec.enable_speculation(llama, "scd", **given)


def test_verdict():
    class Expert:
        name, tokens = "one", 0

        def answer(self, images, question):
            raise AssertionError("asked")

    verdict = SpeculativeVerdict([Expert()], Expert())
    for question, said in (
        (None, "question must be text, not None"),
        (CHAT, "question must be text, not chat messages"),
        (" ", "the question is empty"),
    ):
        with pytest.raises(InputError, match=said):
            verdict(None, question)
    with pytest.raises(InputError, match="keep must be an integer, not '2'"):
        SpeculativeVerdict([Expert()], Expert(), keep="2")


@pytest.mark.parametrize(
    ("hint", "fit", "misfit", "words"),
    [
        (int, [3, np.int64(3)], [True, 3.0, "3", None], "an integer"),
        (float, [3, 3.5, np.float32(3)], [True, "3", None], "a number"),
        (bool, [True], [1, "yes"], "True or False"),
        (str | None, ["a", None], [3], "text or None"),
        (str | list[str], ["a", ["a"], ("a", "b"), []], [[3], {"a"}], "text or a list of texts"),
        (Sequence[int], [[1], (1,), range(3)], ["1", [1.5]], "a list of integers"),
        (int | tuple[int, int], [3, (3, 4), [3, 4]], [(3,), (3, "4")], "or a list of 2 integers"),
        (Literal["a", "b"], ["a"], ["c", 3, ["a"]], "a or b"),
        (Callable[[int], Any] | None, [print, None], [3], "a function or None"),
        (str | Path, ["a", Path("a")], [3], "text or a Path"),
        (dict[str, Any], [{}], [[]], "a dict"),
        (Any, [3, None], [], ""),
    ],
    ids=str,
)
def test_kinds(hint, fit, misfit, words):
    for value in fit:
        check_value("x", value, hint)
    for value in misfit:
        with pytest.raises(InputError, match=f"x must be .*{words}, not "):
            check_value("x", value, hint)


def test_numbers_of_numpy_become_pythons():
    """transformers takes a `top_k` that is an `int`, and no other."""

    @checked
    def kinds(count: int, part: float, sides: int | tuple[int, int], *, steps: int) -> list[type]:
        return [type(count), type(part), *map(type, sides), type(steps)]

    found = kinds(np.int64(3), np.float32(0.5), (np.int32(4), 5), steps=np.int8(6))
    assert found == [int, float, int, int, int]


def test_a_checked_function_is_the_same_function():
    @checked
    def add(a: int, b: int = 2, *rest: int, **more: str) -> int:
        """Adds."""
        return a + b

    assert (add(1), add(1, b=3), add.__doc__) == (3, 4, "Adds.")
    with pytest.raises(InputError, match="missing a required argument: 'a'"):
        add(b=3)
    with pytest.raises(InputError, match="multiple values for argument 'a'"):
        add(1, a=3)
