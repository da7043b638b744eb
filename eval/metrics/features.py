"""What the distances between sets of features share: their names, and what features must be."""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError


def is_inception(extractor: str) -> bool:
    """Whether a distance over these features may bear the name FID or KID."""
    return extractor.startswith("inception-v3")


def slug(extractor: str) -> str:
    """An extractor's name as part of a metric's: `CLIP ViT-L/14` is `clip_vit_l_14`."""
    return re.sub(r"[^0-9a-z]+", "_", extractor.lower()).strip("_")


def as_float64(features: Tensor, extractor: str) -> NDArray[np.float64]:
    """Features `[N, D]` in double precision.

    Raises:
        InputError: a feature is infinite or not a number, which would spoil every statistic.
    """
    array = features.cpu().numpy().astype(np.float64)
    if array.ndim != 2:
        raise ValueError(f"expected features [N, D], got {list(array.shape)}")
    if not np.isfinite(array).all():
        raise InputError(f"{extractor} gave features that are not finite: check its weights")
    return array
