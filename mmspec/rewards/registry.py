"""Rewards and feature extractors by name: what this folder, and other packages, declare."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from ..declarations import Declarations
from ..errors import InputError
from ..registry import check_name
from .part import FeaturePart, RewardPart

if TYPE_CHECKING:
    from .base import FeatureExtractor, Reward

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
