"""Tabs of the page: prompts, settings and examples of every modality."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..methods import Modality, serving
from ..registry import resolve
from ..worlds.shapes.vocabulary import COLORS, PLURALS
from .generation_view import GenerationRequest, GenerationView
from .limits import checked_number

# plain is the other side, and a verdict has none: it asks several models
_APART = ("plain", "verdict")


@dataclass(frozen=True)
class Setting:
    """A number that the pipeline's call takes."""

    name: str
    label: str
    value: float
    low: float
    high: float
    step: float

    def checked(self, value: Any) -> Any:
        """The value; an `InputError` if it is none."""
        whole = float(self.step).is_integer()
        return checked_number(value, self.label, self.low, self.high, whole)


@dataclass(frozen=True)
class Tab:
    """Tab of one modality.

    Attributes:
        asks: what the prompt is called.
        examples: prompts to begin with, the first is there already: what the embedded model does
            well, plainly and speculatively, over many seeds.
        knows: what the embedded model was taught, and nothing else: a sentence, and details.
        settings: beside seed and method.
        pictured: a prompt is about an uploaded picture.
        view: the class of its views, whose module imports models.
        legend: what the two colours mean.
    """

    modality: Modality
    title: str
    asks: str
    examples: tuple[str, ...]
    settings: tuple[Setting, ...]
    view: str
    knows: tuple[str, ...]
    legend: tuple[str, str] = ("drafted, and it stood", "made by the target")
    pictured: bool = False

    @property
    def methods(self) -> list[str]:
        return [name for name in serving(self.modality) if name not in _APART]

    def make(self, pipe: Any, request: GenerationRequest) -> GenerationView:
        return resolve(f"mmspec.app.views:{self.view}")(pipe, request)


_SHAPES = f"{', '.join(PLURALS.values())}, in {', '.join(COLORS)}."
_KNOWS = "The embedded model knows nothing but coloured shapes"
_DRAWN = f"{_KNOWS}, one to four", _SHAPES[0].upper() + _SHAPES[1:]
_GUIDANCE = "Guidance scale; 1 is none"
_TOP_P = Setting("top_p", "Top-p; 1 keeps all tokens", 1.0, 0.05, 1, 0.05)
TABS = (
    Tab(
        "image",
        "Image",
        "Prompt",
        (
            "a photo of a purple triangle",
            "a photo of a blue square",
            "a photo of a green star",
            "a photo of a red circle",
        ),
        (
            Setting("temperature", "Temperature; 0 is greedy", 1.0, 0, 2, 0.05),
            Setting("guidance_scale", _GUIDANCE, 2.0, 1, 10, 0.1),
            Setting("top_k", "Top-k; 0 keeps all tokens, -1 as the model has it", -1, -1, 4096, 1),
            _TOP_P,
        ),
        "ImageView",
        _DRAWN,
    ),
    Tab(
        "vlm",
        "VLM",
        "Question",
        (
            "Describe the picture in detail.",
            "What colour is the heart?",
            "How many yellow objects are there?",
        ),
        (
            Setting("max_new_tokens", "Tokens at most", 96, 1, 512, 1),
            Setting("temperature", "Temperature; 0 is greedy", 0.0, 0, 2, 0.05),
            Setting("top_k", "Top-k; 0 keeps all tokens", 0, 0, 1000, 1),
            _TOP_P,
        ),
        "VlmView",
        (
            f"{_KNOWS} and charts, and answers in English",
            "Charts are bar, line and pie charts.",
        ),
        pictured=True,
    ),
    Tab(
        "continuous",
        "Continuous image",
        "Prompt",
        ("a photo of a blue square", "a photo of a purple triangle", "a photo of a red circle"),
        (
            Setting("diffusion_steps", "Denoising steps a token", 100, 2, 250, 1),
            Setting("temperature", "Temperature; 0: the model's own", 0, 0, 2, 0.05),
            Setting("guidance_scale", f"{_GUIDANCE}, 0: the model's own", 0, 0, 10, 0.1),
        ),
        "ContinuousView",
        _DRAWN,
        ("all of a token's steps were drafted", "none was; the target made them"),
    ),
    Tab(
        "video",
        "Video",
        "Prompt",
        ("a red circle moves down", "a purple triangle stands still", "a green star moves up"),
        (
            Setting("blocks", "Length in blocks of frames", 12, 1, 40, 1),
            Setting("num_inference_steps", "Denoising steps; 0: the model's own", 0, 0, 16, 1),
        ),
        "VideoView",
        (f"{_KNOWS} that move, bounce, stand, pass each other or turn another colour", _DRAWN[1]),
        ("a block of the small model", "made by the target"),
    ),
)
