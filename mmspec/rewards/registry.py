"""Rewards and feature extractors by name, imported when they are loaded."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..registry import Registry, check_name

if TYPE_CHECKING:
    from .base import FeatureExtractor, Reward

REWARDS = Registry(
    "reward",
    {
        "image_reward": "mmspec.rewards.image_reward:ImageReward",
        "clip_score": "mmspec.rewards.clip_score:CLIPScore",
        "hpsv2": "mmspec.rewards.hpsv2:HPSv2",
        "pick_score": "mmspec.rewards.pick_score:PickScore",
        "shapes_clip_score": "mmspec.rewards.shapes_clip:ShapesCLIPScore",
    },
)
FEATURES = Registry(
    "feature extractor",
    {
        "inception-v3": "mmspec.rewards.inception:InceptionV3",
        "clip": "mmspec.rewards.clip:OpenCLIP",
        "shapes_clip": "mmspec.rewards.shapes_clip:ShapesCLIP",
    },
)

_OPEN_CLIP = "a folder in open_clip's format, such as laion/CLIP-ViT-L-14-laion2B-s32B-b82K"
# what the path of the weights leads to; names that are missing here have embedded weights
PUBLISHED = {
    "image_reward": "a folder with ImageReward.pt and med_config.json (of THUDM/ImageReward) "
    "and vocab.txt (of google-bert/bert-base-uncased)",
    "clip_score": _OPEN_CLIP,
    "hpsv2": "the file HPS_v2.1_compressed.pt or HPS_v2_compressed.pt (of xswu/HPSv2)",
    "pick_score": "the folder of yuvalkirstain/PickScore_v1, with model.safetensors",
    "inception-v3": "the file weights-inception-2015-12-05-6726825d.pth (of torch-fidelity)",
    "clip": _OPEN_CLIP,
}

# from where to where scores lie, of pictures and prompts of any kind
SCALES: dict[str, tuple[float, float]] = {
    "router": (0, 100),
    "image_reward": (-5, 5),
    "clip_score": (0, 100),
    "hpsv2": (-1, 1),
    "hpsv2.1": (-1, 1),
    "pick_score": (-100, 100),
    "shapes_clip_score": (0, 100),
}


def check_threshold(knob: str, value: float | None, name: str) -> None:
    """Raise an `InputError` for a knob's value that is of another reward's scale than `name`'s.

    Args:
        value: None: nobody gave one.
    """
    low, high = SCALES.get(name, (-math.inf, math.inf))
    if value is None:
        scale = f", whose scale is from {low:g} to {high:g}" if name in SCALES else ""
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
    reward: Reward = _load(REWARDS, name, weights, device)
    return reward


def load_features(name: str, weights: Path | None = None, device: str = "cpu") -> FeatureExtractor:
    """The feature extractor called `name`; arguments and errors as of `load_reward`."""
    extractor: FeatureExtractor = _load(FEATURES, name, weights, device)
    return extractor


def _load(registry: Registry, name: str, weights: Path | None, device: str) -> Any:
    check_name(registry.kind, name, registry.names())
    if weights is None and name in PUBLISHED:
        raise InputError(
            f"{name} needs its weights: pass --weights {name}=PATH, where PATH is {PUBLISHED[name]}"
        )
    return registry.get(name).from_pretrained(weights, device=device)
