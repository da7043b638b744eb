"""Habits of transformers' and Diffusers' users: calls that work here, or say what to write."""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar

import torch
from torch import nn
from tqdm import tqdm

from ..errors import InputError
from ..registry import check_name

if TYPE_CHECKING:
    from typing_extensions import Self

C = TypeVar("C", bound=type)
_OF_BARS = [*inspect.signature(tqdm.__init__).parameters][1:-1]
_OFFLOAD = (
    "weights are read outside of `forward`, too, where offloading would not move them: move it as "
    "a whole by pipe.to(device), in half precision if it is too large"
)
_ATTENTION = (
    "attention is torch's scaled_dot_product_attention, which is lean already; leave it out"
)
_ADAPTER = "adapters are of single models; load them into the part, such as pipe.components[name]"
_QUANTIZE = "quantize the part before, and give it to from_pretrained by its name"
_VAE = "its decoder decodes as it is; leave it out"
# methods of theirs, and what to write in place of them
METHODS: dict[str, str] = {
    "enable_model_cpu_offload": _OFFLOAD,
    "enable_sequential_cpu_offload": _OFFLOAD,
    "enable_group_offload": _OFFLOAD,
    "enable_xformers_memory_efficient_attention": _ATTENTION,
    "disable_xformers_memory_efficient_attention": _ATTENTION,
    "enable_attention_slicing": _ATTENTION,
    "disable_attention_slicing": _ATTENTION,
    "set_attention_backend": _ATTENTION,
    "set_attn_implementation": _ATTENTION,
    "enable_vae_slicing": _VAE,
    "disable_vae_slicing": _VAE,
    "enable_vae_tiling": _VAE,
    "disable_vae_tiling": _VAE,
    "enable_freeu": "it is for U-Nets, and here are none; leave it out",
    "fuse_qkv_projections": "its layers run as they are; leave it out",
    "load_lora_weights": _ADAPTER,
    "load_ip_adapter": _ADAPTER,
    "load_textual_inversion": _ADAPTER,
    "set_adapters": _ADAPTER,
    "quantize": _QUANTIZE,
    "compile": "calls of speculation differ in mask and length, so nothing is compiled; leave it "
    "out",
    "train": "a pipeline does not train; `mmspec train` makes drafters and models",
    "from_single_file": "give from_pretrained a folder or the id of a repository",
    "from_pipe": "make it of the parts: the class called with **pipe.components",
    "download": "from_pretrained downloads; give it the id of a repository",
    "generate": "call it: pipe(prompt)",
    "chat": "it does not chat; call it: pipe(prompt)",
    "predict": "call it: pipe(prompt)",
    "forward": "call it: pipe(prompt)",
}
# methods that work, by `to` and `components`
MOVES = ("to", "cuda", "cpu", "half", "bfloat16", "float", "double", "eval", "requires_grad_")
_OF_GENERATE = "it is of transformers' `generate`, which writes text; leave it out"
GENERATE = (  # arguments of `generate` that no pipeline takes
    "attention_mask",
    "bad_words_ids",
    "eos_token_id",
    "generation_config",
    "logits_processor",
    "min_new_tokens",
    "min_p",
    "no_repeat_ngram_size",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "past_key_values",
    "prefix_allowed_tokens_fn",
    "repetition_penalty",
    "return_dict_in_generate",
    "sequence_bias",
    "stopping_criteria",
    "use_cache",
)
# arguments of theirs to a call, and what to do in place of them
ARGUMENTS: dict[str, str] = {
    **dict.fromkeys(GENERATE, _OF_GENERATE),
    "assistant_model": "give the pipeline a drafter, and a method that has one",
    "batch_size": "all prompts of a call are made at a time; give fewer",
    "callback": "give callback_on_step_end",
    "callback_steps": "give callback_on_step_end, which hears of every step",
    "callback_on_step_end_tensor_inputs": "its callback is always given `context` and `stats`; "
    "leave it out",
    "cfg_scale": "give guidance_scale",
    "clip_skip": "its text encoder is read at one layer; leave it out",
    "cross_attention_kwargs": "attention takes no arguments here; leave it out",
    "device": "move it before by pipe.to(device)",
    "do_sample": "it always draws; leave it out",
    "dtype": "cast it before by pipe.to(dtype)",
    "eta": "its steps have no such noise; leave it out",
    "guidance_rescale": "give guidance_scale alone",
    "fps": "it makes frames; whoever writes them says how fast they are shown",
    "image": "it makes pictures from text alone; leave it out",
    "images": "it makes pictures from text alone; leave it out",
    "input_ids": "the text is read here; give prompt",
    "inputs": "give it as prompt",
    "ip_adapter_image": "it has no such adapter; leave it out",
    "joint_attention_kwargs": "attention takes no arguments here; leave it out",
    "latents": "what is drawn starts from seeds; give generator",
    "max_length": "the size says how much is made; leave it out",
    "max_new_tokens": "the size says how much is made; leave it out",
    "max_sequence_length": "a prompt is read as far as the model reads; leave it out",
    "max_tokens": "the size says how much is made; leave it out",
    "messages": "it draws what a text says; give that as prompt",
    "negative_prompt_embeds": "the text is encoded here; give negative_prompt",
    "num_beams": "it follows one output a prompt; leave it out",
    "num_frames": "it draws single pictures; take a VideoPipeline",
    "num_return_sequences": "give num_images_per_prompt, or num_videos_per_prompt of clips",
    "prompt_2": "a prompt is read by one text encoder; give prompt alone",
    "prompt_embeds": "the text is encoded here; give prompt",
    "push_to_hub": "it writes a folder; `hf upload` puts that on the hub",
    "safe_serialization": "weights are always written as safetensors; leave it out",
    "question": "give it as prompt",
    "seed": "give generator=torch.Generator().manual_seed(seed)",
    "sigmas": "its noise follows a schedule of its own; leave it out",
    "stop": "the size says how much is made; leave it out",
    "streamer": "give callback_on_step_end, which hears of every step",
    "strength": "it starts from noise or from nothing; leave it out",
    "text": "give it as prompt",
    "text_inputs": "give it as prompt",
    "torch_dtype": "cast it before by pipe.to(dtype)",
    "true_cfg_scale": "give guidance_scale",
}
_OWN_PART = "load that part yourself and give it by its name, such as model=…"
_NO_CODE = "code of a repository is never run here; leave it out"
# arguments of theirs to `from_pretrained`, and what to do in place of them
OPTIONS: dict[str, str] = {
    "attn_implementation": _OWN_PART,
    "config": _OWN_PART,
    "custom_pipeline": _NO_CODE,
    "force_download": "empty the cache, or give another cache_dir",
    "load_in_4bit": _OWN_PART,
    "load_in_8bit": _OWN_PART,
    "max_memory": "give devices by module name as device_map",
    "offload_folder": "nothing is offloaded to a disk; leave it out",
    "offload_state_dict": "nothing is offloaded to a disk; leave it out",
    "pretrained_model_name_or_path": "give it as path",
    "proxies": "set the environment variable HTTPS_PROXY",
    "quantization_config": _OWN_PART,
    "requires_safety_checker": "it has no safety checker; look at its outputs with one of yours",
    "safety_checker": "it has no safety checker; look at its outputs with one of yours",
    "scheduler": "its steps are part of the model; leave it out",
    "trust_remote_code": _NO_CODE,
    "use_auth_token": "give it as token",
    "use_fast": _OWN_PART,
}


class Refusal:
    """A method or class method that raises an `InputError`: what to write in place of it."""

    def __init__(self, name: str, why: str) -> None:
        self.name, self.why = name, why

    def __get__(self, owner: object, kind: type) -> Callable[..., NoReturn]:
        def refuse(*_: Any, **__: Any) -> NoReturn:
            raise InputError(f"{kind.__name__} takes no {self.name}: {self.why}")

        return refuse


def refuses(methods: Mapping[str, str]) -> Callable[[C], C]:
    """Decorate a class: methods by name that it refuses, each with what to write instead."""

    def marked(kind: C) -> C:
        for name, why in methods.items():
            setattr(kind, name, Refusal(name, why))
        return kind

    return marked


@refuses(METHODS)
class Habits:
    """Moves and casts as of a `torch.nn.Module`, by a pipeline's `to` and its `components`.

    `instead` says, by name, what to do in place of arguments of a call that other pipelines take.
    """

    instead: ClassVar[dict[str, str]] = ARGUMENTS
    components: dict[str, Any]
    interrupt: bool

    @property
    def _interrupt(self) -> bool:
        """The same as `interrupt`, by the name that Diffusers' callbacks set."""
        return self.interrupt

    @_interrupt.setter
    def _interrupt(self, stop: bool) -> None:
        self.interrupt = stop

    def set_progress_bar_config(self, **kwargs: Any) -> None:
        """Say how its bars look, by arguments of tqdm, such as `disable=True`.

        Raises:
            InputError: tqdm takes no such argument.
        """
        for name in kwargs:
            check_name("argument", name, _OF_BARS)
        super().set_progress_bar_config(**kwargs)  # type: ignore[misc]  # Diffusers'

    @abstractmethod
    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Move or cast it in place."""

    def cuda(self, device: int | str | torch.device | None = None) -> Self:
        """Move it to a GPU, by its number or its name; None: the current one."""
        number = isinstance(device, int)
        return self.to(f"cuda:{device}" if number else "cuda" if device is None else device)

    def cpu(self) -> Self:
        """Move it to the processor."""
        return self.to("cpu")

    def half(self) -> Self:
        """Cast it to float16."""
        return self.to(torch.float16)

    def bfloat16(self) -> Self:
        """Cast it to bfloat16."""
        return self.to(torch.bfloat16)

    def float(self) -> Self:
        """Cast it to float32."""
        return self.to(torch.float32)

    def double(self) -> Self:
        """Cast it to float64."""
        return self.to(torch.float64)

    def eval(self) -> Self:
        """Set its parts to evaluation, in which `from_pretrained` gives them."""
        for part in self.components.values():
            if isinstance(part, nn.Module):
                part.eval()
        return self

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Let its weights keep gradients, or not."""
        for part in self.components.values():
            if isinstance(part, nn.Module):
                part.requires_grad_(requires_grad)
        return self
