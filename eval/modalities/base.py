"""Modalities by name, and what passes between one and a run, which knows of units and folders."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from ...registry import Registry
from ..schema import MethodResult

if TYPE_CHECKING:
    from .modality import Modality

Rows = dict[str, MethodResult]  # of the report, by name


class PromptItem(Protocol):
    """What one sample is made of: a prompt, or a question about a picture.

    Attributes:
        prompt: what is asked for.
        tag: the part of the suite that it belongs to.
    """

    @property
    def prompt(self) -> str: ...

    @property
    def tag(self) -> str: ...

    def metadata(self) -> dict[str, Any]:
        """All that its samples depend on; JSON."""


@dataclass
class Findings:
    """What a run's lines say.

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


# fields of a suite that not every modality serves
OPTIONS = ("calls", "sceptics", "again", "peers", "blank", "verdict")
MODALITIES = Registry(
    "pipeline",
    {
        "image": "mmspec.eval.modalities.image:ImageModality",
        "vlm": "mmspec.eval.modalities.vlm.modality:VlmModality",
        "continuous": "mmspec.eval.modalities.continuous:ContinuousModality",
        "video": "mmspec.eval.modalities.video:VideoModality",
    },
)


def modality(name: str) -> Modality:
    """The modality called `name`."""
    made: Modality = MODALITIES.get(name)()
    return made
