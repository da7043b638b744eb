"""Declarations of rewards and feature extractors: each stands in the file of its class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..registry import resolve


@dataclass(frozen=True)
class Part:
    """A class that is loaded by a name.

    Attributes:
        name: as users ask for it.
        cls: `"module:Class"`; its `from_pretrained(path, device=…)` loads it.
        weights: what the path of its published weights leads to; "": they come with the package.
    """

    name: str
    cls: str
    weights: str = ""

    def load(self, path: Path | None, device: str) -> Any:
        """The object itself.

        Raises:
            InputError: the weights must be given but are not, or don't fit.
        """
        if path is None and self.weights:
            raise InputError(
                f"{self.name} needs its weights: pass --weights {self.name}=PATH, where PATH is "
                f"{self.weights}"
            )
        return resolve(self.cls).from_pretrained(path, device=device)


@dataclass(frozen=True)
class FeaturePart(Part):
    """A `FeatureExtractor`, for distances of sets."""


@dataclass(frozen=True)
class RewardPart(Part):
    """A `Reward`, which every modality that draws pictures has as a metric, too.

    Attributes:
        bounds: from where to where scores lie, of pictures and prompts of any kind.
        scored_as: names that the loaded class goes by, if it has several versions.
        of_pipeline: its weights are a pipeline's own: it is not loaded by name.
    """

    bounds: tuple[float, float] = (-math.inf, math.inf)
    scored_as: tuple[str, ...] = ()
    of_pipeline: bool = False
