"""Nodes for ComfyUI: load a model, choose how it speculates, draw, make clips, ask.

A node is a class by ComfyUI's contract: `INPUT_TYPES`, `RETURN_TYPES`, `FUNCTION`, `CATEGORY`, and
`OUTPUT_NODE` if it runs though nothing reads what it gives.
Pictures are ComfyUI's: tensors `[B, H, W, 3]` in 0 to 1; a clip is a batch of its frames.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InputError
from ..methods import PIPELINES, Modality, serving
from ..pipelines.model_folders import first_able, locate
from ..registry import resolve

KINDS: tuple[Modality, ...] = ("image", "continuous", "vlm", "video")
MODEL = "MMSPEC_MODEL"  # the type of a wire between these nodes
CATEGORY = "mmspec"
SEED = ("INT", {"default": 0, "min": 0, "max": 2**53 - 1})
OWN = "its default"


@dataclass(frozen=True)
class Wired:
    """A model on a wire: a pipeline that nodes share, and how these ones let it speculate.

    Attributes:
        pipe: the pipeline.
        kind: what it makes.
        method: how; None: its default.
    """

    pipe: Any
    kind: Modality
    method: str | None = None

    def ready(self, *kinds: Modality) -> Any:
        """The pipeline, set to speculate; errors are told if its kind is none of these."""
        if self.kind not in kinds:
            wanted = " or ".join(kinds)
            raise InputError(f"this node wants a model of {wanted}, and this one is of {self.kind}")
        self.pipe.enable_speculation(self.method or first_able(self.pipe, self.kind))
        return self.pipe


class LoadModel:
    """Load a model: a folder, a hub id, or "" for the one that ships."""

    CATEGORY, FUNCTION = CATEGORY, "load"
    RETURN_TYPES, RETURN_NAMES = (MODEL,), ("model",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  # ComfyUI's name
        """Sockets of the node."""
        places = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
        return {
            "required": {
                "kind": (list(KINDS),),
                "model": ("STRING", {"default": ""}),
                "device": (places,),
            }
        }

    def load(self, kind: Modality, model: str, device: str) -> tuple[Wired]:
        made = resolve(PIPELINES[kind].reference)
        pipe = made.from_pretrained(locate(model.strip() or None, made.embedded)).to(device)
        pipe.set_progress_bar_config(disable=True)
        return (Wired(pipe, kind),)


class Speculate:
    """Choose how a model speculates, and say what that promises."""

    CATEGORY, FUNCTION = CATEGORY, "choose"
    RETURN_TYPES, RETURN_NAMES = (MODEL, "STRING"), ("model", "contract")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  # ComfyUI's name
        """Sockets of the node."""
        names = sorted({name for kind in KINDS for name in serving(kind)})
        return {
            "required": {"model": (MODEL,), "method": ([OWN, *names],)},
            # such as window=24,num_draft_tokens=8
            "optional": {"settings": ("STRING", {"default": ""})},
        }

    def choose(self, model: Wired, method: str, settings: str = "") -> tuple[Wired, str]:
        name = None if method == OWN else method
        if settings.strip():
            if name is None:
                raise InputError("settings are of a method; choose one")
            name = f"{name}[{settings.strip()}]"
        chosen = replace(model, method=name)
        pipe = chosen.ready(model.kind)
        return chosen, str(pipe.speculation.resolve(model.kind).contract)


class DrawPicture:
    """Draw pictures from a prompt."""

    CATEGORY, FUNCTION = CATEGORY, "draw"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE", "STRING"), ("images", "took")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  # ComfyUI's name
        """Sockets of the node."""
        return {
            "required": {
                "model": (MODEL,),
                "prompt": ("STRING", {"multiline": True, "default": "a photo of a red circle"}),
                "number": ("INT", {"default": 1, "min": 1, "max": 64}),
                "seed": SEED,
            },
            # 0: the model's own
            "optional": {"guidance": ("FLOAT", {"default": 0.0, "min": 0.0, "max": 30.0})},
        }

    def draw(
        self, model: Wired, prompt: str, number: int, seed: int, guidance: float = 0.0
    ) -> tuple[Tensor, str]:
        pipe = model.ready("image", "continuous")
        own = {} if guidance == 0 else {"guidance_scale": guidance}
        out = pipe(
            prompt,
            num_images_per_prompt=number,
            generator=_chance(seed, number),
            output_type="np",
            callback_on_step_end=_watched(),
            **own,
        )
        return torch.from_numpy(out.images).float(), _took(out.stats)


class MakeClip:
    """Make a clip from a prompt: its frames as a batch."""

    CATEGORY, FUNCTION = CATEGORY, "make"
    RETURN_TYPES, RETURN_NAMES = ("IMAGE", "STRING"), ("frames", "took")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  # ComfyUI's name
        """Sockets of the node."""
        return {
            "required": {
                "model": (MODEL,),
                "prompt": ("STRING", {"multiline": True, "default": "a red circle moves down"}),
                "seed": SEED,
            }
        }

    def make(self, model: Wired, prompt: str, seed: int) -> tuple[Tensor, str]:
        pipe = model.ready("video")
        out = pipe(
            prompt,
            generator=_chance(seed, 1),
            output_type="np",
            callback_on_step_end=_watched(),
        )
        return torch.from_numpy(out.frames[0]).float(), _took(out.stats)


class AskAboutPicture:
    """Ask a question about pictures; it runs though no node reads its answer, and shows it."""

    CATEGORY, FUNCTION, OUTPUT_NODE = CATEGORY, "ask", True
    RETURN_TYPES, RETURN_NAMES = ("STRING", "STRING"), ("answer", "took")

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802  # ComfyUI's name
        """Sockets of the node."""
        question = {"multiline": True, "default": "Describe the picture in detail."}
        return {
            "required": {
                "model": (MODEL,),
                "image": ("IMAGE",),
                "question": ("STRING", question),
                "max_tokens": ("INT", {"default": 128, "min": 1, "max": 4096}),
            }
        }

    def ask(self, model: Wired, image: Tensor, question: str, max_tokens: int) -> dict[str, Any]:
        pipe = model.ready("vlm")
        bytes_ = (image.clamp(0, 1) * 255).round().to(torch.uint8).cpu()  # some nodes overshoot
        pictures = [one.numpy() for one in bytes_]
        out = pipe(question, pictures, max_new_tokens=max_tokens, callback_on_step_end=_watched())
        answer, took = out.text[0], _took(out.stats)
        return {"ui": {"text": [answer, took]}, "result": (answer, took)}


NODE_CLASS_MAPPINGS: dict[str, type[Any]] = {
    "MmspecLoadModel": LoadModel,
    "MmspecSpeculate": Speculate,
    "MmspecDrawPicture": DrawPicture,
    "MmspecMakeClip": MakeClip,
    "MmspecAskAboutPicture": AskAboutPicture,
}
NODE_DISPLAY_NAME_MAPPINGS: dict[str, str] = {
    "MmspecLoadModel": "Load a speculating model",
    "MmspecSpeculate": "Choose how it speculates",
    "MmspecDrawPicture": "Draw pictures",
    "MmspecMakeClip": "Make a clip",
    "MmspecAskAboutPicture": "Ask about a picture",
}


def _chance(seed: int, number: int) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + n) for n in range(number)]


def _took(stats: Any) -> str:
    """What a call took, in a line."""
    calls = sum(stats.calls) / max(1, len(stats.calls))
    return f"{stats.method}: {calls:.0f} calls of the model, contract {stats.contract}"


def _watched() -> Any:
    """A callback that lets ComfyUI's own button interrupt a call; None outside of ComfyUI."""
    try:
        from comfy.model_management import throw_exception_if_processing_interrupted
    except ImportError:
        return None

    def after_round(*_: Any) -> None:
        throw_exception_if_processing_interrupted()

    return after_round
