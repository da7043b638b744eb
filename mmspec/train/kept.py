"""Averages of trained weights with those that a run began with (WiSE-FT, Wortsman et al. 2022).

Less is forgotten of what was learned before, and two runs of one head are often worse than their
mean.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import TypeVar

from torch import Tensor, nn

from ..errors import InputError

Network = TypeVar("Network", bound=nn.Module)


def check_keep(keep: float, init: str | None, stage: str) -> None:
    """Raise an `InputError` unless so large a share of the first weights can be kept."""
    if not 0 <= keep < 1 or (keep and init != stage):
        raise InputError(f"keep must be from 0 to 1, of a run with --init {stage}, not {keep:g}")


def averaged(model: Network, first: Mapping[str, Tensor], keep: float) -> Network:
    """The model with a share `keep` of its first weights, a copy; itself if that is 0."""
    if not keep:
        return model
    mixed = copy.deepcopy(model).requires_grad_(False)
    for name, weight in mixed.named_parameters():  # one that layers share comes once
        weight.lerp_(first[name].to(weight), keep)
    return mixed
