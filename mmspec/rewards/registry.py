"""Rewards and feature extractors by name: each is declared in the file of its class."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..declarations import Declarations
from ..errors import InputError
from ..registry import check_name, resolve

if TYPE_CHECKING:
    from .base import FeatureExtractor, Reward


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


GROUP = "mmspec.metrics"  # of the entry points by which another package adds its own
REWARDS = Declarations(RewardPart, "reward", (__package__,), GROUP)
FEATURES = Declarations(FeaturePart, "feature extractor", (__package__,), GROUP)


def reward_names() -> list[str]:
    """The rewards that can be loaded by their name."""
    return [part.name for part in REWARDS.all() if not part.of_pipeline]


def check_threshold(knob: str, value: float | None, name: str) -> None:
    """Raise an `InputError` for a knob's value that is of another reward's scale than `name`'s.

    Args:
        value: None: nobody gave one.
    """
    named = {n: part.bounds for part in REWARDS.all() for n in (part.name, *part.scored_as)}
    low, high = named.get(name, (-math.inf, math.inf))
    if value is None:
        scale = f", whose scale is from {low:g} to {high:g}" if name in named else ""
        raise InputError(f"no {knob} is usual for reward {name!r}{scale}; give a {knob}")
    if math.isfinite(value) and not low <= value <= high:
        raise InputError(
            f"{knob} {value:g} is no threshold for reward {name!r}, whose scale is from {low:g} to "
            f"{high:g}; give a {knob} on it"
        )


def load_reward(name: str, weights: Path | None = None, device: str = "cpu") -> Reward:
    """The reward called `name`.

    Args:
        weights: file or folder of its published checkpoint; None: the embedded one.

    Raises:
        InputError: nothing has that name, the weights must be given but are not, or don't fit.
    """
    check_name("reward", name, reward_names())
    return REWARDS.get(name).load(weights, device)


def load_features(name: str, weights: Path | None = None, device: str = "cpu") -> FeatureExtractor:
    """The feature extractor called `name`; arguments and errors as of `load_reward`."""
    return FEATURES.get(name).load(weights, device)
