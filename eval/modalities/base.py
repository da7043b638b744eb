"""Modalities as suites know them, and what passes between one and a run; nothing imports torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ...registry import resolve
from ..judges.clips import ClipMetric
from ..metrics.base import Metric, PictureMetric
from ..metrics.features import SetDistance
from ..metrics.graded_answers import AnswerGrade
from ..schema import MethodResult

if TYPE_CHECKING:
    from ..suite import Suite
    from .modality import Modality

Rows = dict[str, MethodResult]  # of the report, by name


class PromptItem(Protocol):
    """Input of a sample: a prompt, or a question about a picture.

    Attributes:
        prompt: what is asked for.
        tag: the part of the suite that it belongs to.
    """

    @property
    def prompt(self) -> str: ...

    @property
    def tag(self) -> str: ...

    def metadata(self) -> dict[str, Any]:
        """JSON of everything that its samples depend on."""


@dataclass
class Findings:
    """Findings from a run's lines.

    Attributes:
        rows: of the report, by name.
        notes: what a reader must know.
        costs: seconds of bare forward passes, see `Report`.
        settings: numbers of prompts, calls and samples.
    """

    rows: Rows
    notes: list[str] = field(default_factory=list)
    costs: dict[str, dict[int, float]] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ModalityPart:
    """A modality, declared for suites; its `Modality` measures.

    Attributes:
        reference: of the `Modality`, "module:Class".
        reader: of prompts, "module:function" of a suite and a path, which may be None.
        arguments: of a pipeline call that a suite may set; others are a run's own affair.
        options: fields of a suite that it serves, of those that not all do: `OPTIONS`.
        metrics: classes of the metrics that its suites may name.
    """

    reference: str
    reader: str
    arguments: tuple[str, ...]
    options: tuple[str, ...]
    metrics: tuple[type[Metric], ...]

    def items(self, suite: Suite, path: Path | None) -> tuple[PromptItem, ...]:
        """The items of a suite, or the user's own.

        Raises:
            InputError: there is no file, or a line of it is no item.
        """
        return resolve(self.reader)(suite, path)


# fields of a suite that not every modality serves
OPTIONS = ("calls", "sceptics", "again", "peers", "blank", "verdict", "closed_loop")
_HERE, _DATA = "mmspec.eval.modalities", "mmspec.eval.data"
_PICTURES = (PictureMetric, SetDistance)
_SIZES = ("height", "width")
MODALITIES = {
    "image": ModalityPart(
        f"{_HERE}.image:ImageModality",
        f"{_DATA}.prompts:load_prompts",
        # laws take them as well, for these are measured too
        (*_SIZES, "guidance_scale", "temperature", "top_k", "top_p"),
        ("again",),
        _PICTURES,
    ),
    "vlm": ModalityPart(
        f"{_HERE}.vlm.modality:VlmModality",
        f"{_DATA}.picture_questions:load_picture_questions",
        ("max_new_tokens", "temperature", "top_k", "top_p", "stop", "background"),
        ("calls", "peers", "blank", "verdict"),
        (AnswerGrade,),
    ),
    "text": ModalityPart(
        f"{_HERE}.text.modality:TextModality",
        f"{_DATA}.conversations:load_conversations",
        ("max_new_tokens", "temperature", "top_k", "top_p", "stop"),
        ("calls", "peers", "closed_loop"),
        (),
    ),
    "continuous": ModalityPart(
        f"{_HERE}.continuous:ContinuousModality",
        f"{_DATA}.prompts:load_prompts",
        (
            *("negative_prompt", *_SIZES, "num_iterations", "guidance_scale", "guidance_schedule"),
            *("temperature", "diffusion_steps", "learned_variance"),
        ),
        ("sceptics", "again"),
        _PICTURES,
    ),
    "video": ModalityPart(
        f"{_HERE}.video:VideoModality",
        f"{_DATA}.clip_prompts:load_clip_prompts",
        (
            *("negative_prompt", *_SIZES, "num_frames", "num_inference_steps", "timesteps"),
            *("shift", "guidance_scale"),
        ),
        ("sceptics", "again"),
        (ClipMetric,),
    ),
}


def modality(name: str) -> Modality:
    """The modality called `name`."""
    return resolve(MODALITIES[name].reference)()
