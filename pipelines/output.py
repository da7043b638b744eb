"""What the pipelines return."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from diffusers.utils import BaseOutput

from ..engine.stats import SpecStats
from .continuous_stats import ContinuousStats


@dataclass
class VlmOutput(BaseOutput):
    """Answers of one call.

    Attributes:
        text: the answers, a string per question.
        tokens: their token ids, a list per question, the end-of-sequence token included.
        stats: what the generation took.
    """

    text: list[str]
    tokens: list[list[int]]
    stats: SpecStats


@dataclass
class ImageOutput(BaseOutput):
    """Images of one call.

    Attributes:
        images: list of PIL images, an array `[B, H, W, 3]` in [0, 1] ("np"), a tensor
            `[B, 3, H, W]` in [0, 1] ("pt"), or token ids `[B, h * w]` ("tokens").
        stats: what the generation took.
    """

    images: Any
    stats: SpecStats


@dataclass
class ContinuousOutput(BaseOutput):
    """Images of one call of a model of continuous tokens.

    Attributes:
        images: list of PIL images, an array `[B, H, W, 3]` in [0, 1] ("np"), a tensor
            `[B, 3, H, W]` in [0, 1] ("pt"), or the tokens `[B, L, C]` ("latent").
        stats: what the generation took.
    """

    images: Any
    stats: ContinuousStats
