"""A pipeline as rounded weights are measured on it: its layers, outputs, laws and calls."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from torch import Tensor, nn

CAPTIONS = (
    "a photo of a red circle",
    "a photo of two blue stars",
    "a photo of a green square left of a red ring",
    "a photo of three yellow triangles",
)


class Subject(Protocol):
    """A pipeline; `weights` is a form that they are rounded to, None: as they are.

    Attributes:
        linears: layers that are rounded.
    """

    linears: list[nn.Linear]

    def decode(self, sample: int, weights: str | None) -> tuple[Tensor, float]:
        """Output tokens of a plain generation, and seconds a token of its loop."""

    def apart(
        self, sample: int, tokens: Tensor, weights: str | None
    ) -> tuple[Tensor, Tensor | None]:
        """Total variation `[n]` of its laws over the tokens to the unrounded ones, and whether
        their likeliest tokens differ `[n]`, if they are ids. n is 0 where tokens have no laws."""

    def call(self, rows: int, weights: str | None) -> float:
        """Seconds of a call of `rows` tokens."""


class IdsSubject(ABC):
    """Tokens that are ids: their laws are lists of probabilities."""

    def apart(self, sample: int, tokens: Tensor, weights: str | None) -> tuple[Tensor, Tensor]:
        laws, truth = (self.laws(sample, tokens, form).double() for form in (weights, None))
        return (laws - truth).abs().sum(-1) / 2, laws.argmax(-1) != truth.argmax(-1)

    @abstractmethod
    def laws(self, sample: int, tokens: Tensor, weights: str | None) -> Tensor:
        """Laws `[S, V]` at each of the tokens."""


def linears_of(module: nn.Module) -> list[nn.Linear]:
    """Linear layers in a module."""
    return [m for m in module.modules() if isinstance(m, nn.Linear)]


def subject_of(pipe: Any) -> Subject:
    """A pipeline as a subject."""
    from mmspec import ContinuousImagePipeline, TextPipeline, VideoPipeline, VlmPipeline

    from .continuous import ContinuousSubject
    from .image import ImageSubject
    from .text import TextSubject, VlmSubject
    from .video import VideoSubject

    for kind, made in (
        (TextPipeline, TextSubject),
        (VlmPipeline, VlmSubject),
        (ContinuousImagePipeline, ContinuousSubject),
        (VideoPipeline, VideoSubject),
    ):
        if isinstance(pipe, kind):
            subject: Subject = made(pipe)
            return subject
    return ImageSubject(pipe)
