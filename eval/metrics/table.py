"""The metrics of picture sets by name, and what each is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Metric:
    """How a metric is made.

    Attributes:
        kind: a distance between the features of two sets, a distance of like-named pictures, or a
            reward of pictures and captions.
        network: what the weights are of, as the rewards' registry calls it.
        embedded: the weights come with the package.
    """

    kind: Literal["frechet", "kid", "pairs", "reward"]
    network: str
    embedded: bool = False


METRICS = {
    "fid": Metric("frechet", "inception-v3"),
    "kid": Metric("kid", "inception-v3"),
    "lpips": Metric("pairs", "lpips"),
    "clip_score": Metric("reward", "clip_score"),
    "hpsv2": Metric("reward", "hpsv2"),
    "image_reward": Metric("reward", "image_reward"),
    "pick_score": Metric("reward", "pick_score"),
    "frechet_shapes_clip": Metric("frechet", "shapes_clip", embedded=True),
    "kid_shapes_clip": Metric("kid", "shapes_clip", embedded=True),
    "shapes_clip_score": Metric("reward", "shapes_clip_score", embedded=True),
}
